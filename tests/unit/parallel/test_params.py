import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn.initializers import normal, ones

from maxtext.parallel import params as specs_of
from maxtext.parallel.params import (
    Param,
    abstract,
    count_params,
    initialize,
    merge,
    named_leaves,
    param,
    pytree,
    select,
    shardings,
    stack,
)
from maxtext.types import Weight
from tiny import tiny_setup

MESHES = [
    ("ici_data_parallelism=8", "ici_fsdp_parallelism=1"),
    ("ici_fsdp_parallelism=8",),
    ("ici_fsdp_parallelism=4", "ici_tensor_parallelism=2"),
]


@pytree
class Pair:
    first: Weight
    second: Weight | None


def weight(size: int = 4) -> Weight:
    return param((size, 6), ("embed", "mlp"), normal(1.0), jnp.float32)


def drawn(setup, mesh_layout) -> dict[str, np.ndarray]:
    places = shardings(setup.specs, mesh_layout)
    draw = jax.jit(lambda: initialize(setup.specs, jax.random.key(3)), out_shardings=places)
    return {name: np.asarray(leaf) for name, leaf in named_leaves(draw()).items()}


@pytest.mark.parametrize("mesh", MESHES)
def test_random_weights_are_the_same_numbers_on_every_mesh(mesh: tuple[str, ...]) -> None:
    one = tiny_setup()
    want = drawn(one, one.layout)
    got = drawn(one, tiny_setup(*mesh, devices=8).layout)
    for name, leaf in want.items():
        np.testing.assert_array_equal(got[name], leaf, err_msg=name)


def test_a_weights_numbers_do_not_depend_on_other_weights() -> None:
    key = jax.random.key(0)
    alone = initialize(Pair(first=weight(), second=None), key)
    beside = initialize(Pair(first=weight(), second=weight()), key)
    np.testing.assert_array_equal(alone.first, beside.first)
    assert not np.array_equal(beside.first, beside.second)


def test_weights_of_a_narrower_type_are_the_same_numbers_rounded() -> None:
    wide = tiny_setup("decoder_block=gemma2", "sliding_window_size=8", "attention_bias=true")
    narrow = tiny_setup(
        "decoder_block=gemma2",
        "sliding_window_size=8",
        "attention_bias=true",
        "weight_dtype=bfloat16",
    )
    want, got = drawn(wide, wide.layout), drawn(narrow, narrow.layout)
    assert want.keys() == got.keys()
    for name, leaf in want.items():
        np.testing.assert_array_equal(got[name], leaf.astype(jnp.bfloat16), err_msg=name)


def test_stacked_layers_get_numbers_of_their_own() -> None:
    stacked = initialize(stack(weight(), 3, "layers"), jax.random.key(0))
    assert stacked.shape == (3, 4, 6)
    assert len(np.unique(stacked)) == stacked.size


def test_stack_adds_a_named_leading_dim_to_every_spec() -> None:
    specs = stack(Pair(first=weight(), second=weight(8)), 5, "layers")
    leaves = named_leaves(specs)
    assert {name: leaf.shape for name, leaf in leaves.items()} == {
        "first": (5, 4, 6),
        "second": (5, 8, 6),
    }
    assert leaves["first"].axes == ("layers", "embed", "mlp")
    assert (leaves["first"].num_stacked, stack(specs, 2, "x").first.num_stacked) == (1, 2)
    assert count_params(specs) == 5 * (4 + 8) * 6


def test_every_matrix_knows_what_it_sums_over() -> None:
    specs = named_leaves(tiny_setup("use_qk_norm=true").specs)
    summed = {
        name: [spec.axes[dim] for dim in spec.in_dims]
        for name, spec in specs.items()
        if spec.num_in
    }
    layers = "decoder/layers"
    assert summed == {
        "token_embedder/embedding": ["vocab"],
        f"{layers}/self_attention/query/kernel": ["embed"],
        f"{layers}/self_attention/key/kernel": ["embed"],
        f"{layers}/self_attention/value/kernel": ["embed"],
        f"{layers}/self_attention/out/kernel": ["heads", "kv"],
        f"{layers}/mlp/wi_0/kernel": ["embed"],
        f"{layers}/mlp/wi_1/kernel": ["embed"],
        f"{layers}/mlp/wo/kernel": ["mlp"],
        "decoder/logits_dense/kernel": ["embed"],
    }
    out = specs[f"{layers}/self_attention/out/kernel"]
    assert [out.axes[dim] for dim in out.out_dims] == ["embed"]


def test_a_selection_merged_with_the_rest_is_the_whole() -> None:
    whole = {"a": 1, "b": {"c": 2, "absent": None}, "d": 3}
    mask = {"a": True, "b": {"c": False, "absent": None}, "d": True}
    some = select(whole, mask)
    assert some == {"a": 1, "b": {"c": None, "absent": None}, "d": 3}
    assert select(some, jax.tree.map(lambda keep: not keep, mask)) == select(
        whole, {"a": False, "b": {"c": False, "absent": None}, "d": False}
    )
    assert merge(some, whole) == whole
    assert merge({**some, "a": 7}, whole) == {**whole, "a": 7}


def test_random_kernels_have_variance_one_over_fan_in() -> None:
    setup = tiny_setup()
    leaves = drawn(setup, setup.layout)
    for name, fan_in in {
        "decoder/layers/self_attention/query/kernel": 64,
        "decoder/layers/self_attention/out/kernel": 64,
        "decoder/layers/mlp/wo/kernel": 128,
        "decoder/logits_dense/kernel": 64,
    }.items():
        assert leaves[name].var() * fan_in == pytest.approx(1.0, rel=0.1), name
    assert leaves["token_embedder/embedding"].std() == pytest.approx(0.02, rel=0.05)
    assert np.all(leaves["decoder/decoder_norm/scale"] == 1.0)


def test_leaves_are_named_as_users_read_them() -> None:
    assert list(named_leaves(tiny_setup().specs)) == [
        "token_embedder/embedding",
        "decoder/layers/pre_self_attention_layer_norm/scale",
        "decoder/layers/self_attention/query/kernel",
        "decoder/layers/self_attention/key/kernel",
        "decoder/layers/self_attention/value/kernel",
        "decoder/layers/self_attention/out/kernel",
        "decoder/layers/post_self_attention_layer_norm/scale",
        "decoder/layers/mlp/wi_0/kernel",
        "decoder/layers/mlp/wi_1/kernel",
        "decoder/layers/mlp/wo/kernel",
        "decoder/decoder_norm/scale",
        "decoder/logits_dense/kernel",
    ]


def test_specs_shardings_and_arrays_have_the_same_names() -> None:
    setup = tiny_setup("ici_fsdp_parallelism=8", devices=8)
    trees = (
        setup.specs,
        shardings(setup.specs, setup.layout),
        abstract(setup.specs, setup.layout),
        jax.eval_shape(lambda: initialize(setup.specs, jax.random.key(0))),
    )
    assert len({tuple(named_leaves(tree)) for tree in trees}) == 1


def test_the_restore_target_has_shape_type_and_place() -> None:
    setup = tiny_setup("ici_fsdp_parallelism=8", "weight_dtype=bfloat16", devices=8)
    leaf = abstract(setup.specs, setup.layout).decoder.logits_dense.kernel
    assert (leaf.shape, leaf.dtype) == ((64, 256), jnp.bfloat16)
    assert leaf.sharding == setup.layout.sharding(("embed", "vocab"), (64, 256))


def test_every_weight_that_cannot_be_laid_out_is_named() -> None:
    layout = tiny_setup("ici_fsdp_parallelism=8", devices=8).layout
    specs = Pair(first=weight(4), second=weight(12))
    with pytest.raises(ValueError, match="does not divide") as caught:
        specs_of.shardings(specs, layout)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["first", "second"]
    assert "'embed' of size 12 does not divide over fsdp 8" in lines[1]


def test_a_spec_whose_axes_do_not_match_its_shape_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError, match="differ in rank"):
        Param((2, 3), ("embed",), ones, jnp.float32)

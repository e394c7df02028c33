"""Fused projections are another way to hold and run the same model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.config.load import load
from maxtext.layers.attentions import FusedAttention, attention
from maxtext.models.fusion import NOTHING_FUSED, Fusion
from maxtext.ops.attention import AttentionPattern
from maxtext.parallel.layout import use_layout
from maxtext.parallel.params import abstract, count_params, named_leaves
from tiny import GEMMA2, GEMMA3, QWEN3, Taken, ragged_batch, start_state, take_steps, tiny_setup

FUSED = ("fused_qkv=true", "fused_mlp=true")
BOTH = Fusion(qkv=True, mlp=True)
FAMILIES = {
    "llama": (),
    "mha": ("base_num_kv_heads=8",),
    "mqa": ("base_num_kv_heads=1",),
    "qwen2": ("decoder_block=qwen2", "attention_bias=true"),
    "qwen3": QWEN3,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
}
QKV = "decoder/layers/self_attention/qkv_proj/kernel"


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_weights_are_those_of_the_separate_model(family: str) -> None:
    setup = tiny_setup(*FAMILIES[family], *FUSED)
    fused = setup.fusion.specs(setup.specs)
    assert count_params(fused) == count_params(setup.specs)
    params = start_state(setup).params
    for name, leaf in named_leaves(params).items():
        spec = named_leaves(fused)[name]
        assert (leaf.shape, leaf.dtype, len(spec.axes)) == (spec.shape, spec.dtype, leaf.ndim)
    apart = named_leaves(BOTH.apart(params))
    want = named_leaves(start_state(tiny_setup(*FAMILIES[family])).params)
    assert list(apart) == list(want)
    for name, leaf in want.items():
        np.testing.assert_array_equal(apart[name], leaf, err_msg=name)


def test_grouped_queries_are_not_built_as_many_heads() -> None:
    setup = tiny_setup(*FUSED)
    assert count_params(setup.fusion.specs(setup.specs)) == 102_720
    shapes = {name: leaf.shape for name, leaf in named_leaves(setup.abstract.params).items()}
    # Two KV heads, each with four query heads, its key and its value.
    assert shapes[QKV] == (2, 64, 2, 4 + 2, 8)
    assert shapes["decoder/layers/mlp/wi/kernel"] == (2, 64, 2, 128)
    assert "decoder/layers/self_attention/query/kernel" not in shapes


def test_each_kv_head_lies_with_the_query_heads_that_look_at_it() -> None:
    setup = tiny_setup(*FUSED, "attention_bias=true")
    draw = np.random.default_rng(0)
    apart = jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), leaf.dtype), setup.stored.params
    )
    one, other = (tree.decoder.groups["layers"] for tree in (apart, BOTH.joined(apart)))
    fused, one_attention = other.self_attention.qkv_proj, one.self_attention
    for leaf in ("kernel", "bias"):
        together = getattr(fused, leaf)
        query, key, value = (
            getattr(getattr(one_attention, name), leaf) for name in ("query", "key", "value")
        )
        for head in range(8):
            np.testing.assert_array_equal(
                together[..., head // 4, head % 4, :], query[..., head, :]
            )
        np.testing.assert_array_equal(together[..., 4, :], key)
        np.testing.assert_array_equal(together[..., 5, :], value)
    np.testing.assert_array_equal(other.mlp.wi.kernel[:, :, 0], one.mlp.wi_0.kernel)
    np.testing.assert_array_equal(other.mlp.wi.kernel[:, :, 1], one.mlp.wi_1.kernel)


def layer_of(*argv: str, devices: int = 1):
    """The fused attention of one layer, abstract, and its setup."""
    setup = tiny_setup(*FUSED, "attention_bias=true", *argv, devices=devices)
    (group,) = setup.architecture.groups
    params = abstract(setup.fusion.specs(group.params), setup.layout).self_attention
    assert isinstance(params, FusedAttention)
    return params, setup


def projected(params: FusedAttention, x: jax.Array) -> dict[str, jax.Array]:
    """What attention is handed."""
    seen: dict[str, jax.Array] = {}

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, _: AttentionPattern) -> jax.Array:
        seen.update(q=q, k=k, v=v)
        return q

    turns = jnp.ones((x.shape[0], x.shape[1], 4))
    pattern = AttentionPattern(scale=1.0, window=None)
    attention(params, x, rotation=(turns, turns), attend=attend, pattern=pattern, eps=1e-5)
    return seen


def test_attention_is_handed_few_keys_and_values() -> None:
    params, _ = layer_of()
    x = jax.ShapeDtypeStruct((8, 32, 64), jnp.float32)
    seen = jax.eval_shape(projected, params, x)
    assert {name: one.shape[2:] for name, one in seen.items()} == {
        "q": (8, 8),
        "k": (2, 8),
        "v": (2, 8),
    }


@pytest.mark.parametrize("axis", ["tensor", "tensor_sequence"])
def test_devices_take_their_heads_without_talking_to_each_other(axis: str) -> None:
    mesh = ("ici_data_parallelism=4", "ici_fsdp_parallelism=1", f"ici_{axis}_parallelism=2")
    params, setup = layer_of(*mesh, devices=8)
    where = setup.layout.sharding(("activation_batch", "activation_length", None), (8, 32, 64))
    x = jax.ShapeDtypeStruct((8, 32, 64), jnp.float32, sharding=where)
    with use_layout(setup.layout):
        compiled = jax.jit(projected).lower(params, x).compile()
    # Of a device: one KV head with its four query heads.
    shards = {
        name: sharding.shard_shape((8, 32, 8 if name == "q" else 2, 8))
        for name, sharding in compiled.output_shardings.items()
    }
    assert shards == {"q": (2, 32, 4, 8), "k": (2, 32, 1, 8), "v": (2, 32, 1, 8)}
    for collective in ("all-gather", "all-reduce", "all-to-all", "reduce-scatter", "permute"):
        assert collective not in compiled.as_text()


def test_kv_heads_that_do_not_divide_are_an_error_with_the_remedy() -> None:
    mesh = ("ici_fsdp_parallelism=2", "ici_tensor_parallelism=4")
    remedy = (
        r"'kv_heads' of size 2 .* replicate it: .*\{kv_heads: \[\], activation_kv_heads: \[\]\}"
    )
    with pytest.raises(ValueError, match=remedy):
        tiny_setup(*FUSED, *mesh, devices=8)


def test_fused_mlp_without_a_gate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"fused_mlp.*nothing to be fused with"):
        load(["fused_mlp=true", "mlp_activations=[relu]"], {})


# An update that is smooth in the gradient, so that weights show what gradients do.
SMOOTH = "adam_eps=1e-3"


@functools.cache
def three_steps(*argv: str) -> Taken:
    return take_steps(tiny_setup(*argv), ragged_batch(), steps=3)


def test_the_compiled_step_has_the_flops_of_the_separate_one() -> None:
    unrolled = ("scan_layers=false", "remat_policy=none")
    flops = {
        argv: three_steps(*argv, *unrolled).compiled.cost_analysis()["flops"]
        for argv in ((), FUSED, ("base_num_kv_heads=8",))
    }
    assert flops[FUSED] == pytest.approx(flops[()], rel=2e-3)
    assert flops["base_num_kv_heads=8",] > 1.05 * flops[()]


@pytest.mark.parametrize(
    "argv",
    [
        ("opt_type=muon", SMOOTH),
        ("opt_type=adafactor",),
        ("trainable_parameters_mask=[query, wi_1, norm]", SMOOTH),
        ("trainable_parameters_mask=[out, wo]", SMOOTH),
    ],
    ids=" ".join,
)
def test_every_part_is_updated_by_itself(argv: tuple[str, ...]) -> None:
    want, got = three_steps(*argv), three_steps(*argv, *FUSED)
    assert got.metrics.loss == pytest.approx(want.metrics.loss, rel=1e-5)
    assert got.metrics.grad_norm == pytest.approx(want.metrics.grad_norm, rel=1e-5)
    for name, leaf in want.params.items():
        np.testing.assert_allclose(got.params[name], leaf, rtol=1e-5, atol=1e-5, err_msg=name)
    state, other = named_leaves(got.state.opt_state), named_leaves(want.state.opt_state)
    assert {name: leaf.shape for name, leaf in state.items()} == {
        name: leaf.shape for name, leaf in other.items()
    }


def test_what_is_not_trained_stays_beside_what_is() -> None:
    argv = ("trainable_parameters_mask=[query]", *FUSED)
    before = named_leaves(BOTH.apart(start_state(tiny_setup(*argv)).params))
    changed = {
        name
        for name, leaf in three_steps(*argv).params.items()
        if not np.array_equal(leaf, before[name])
    }
    assert changed == {"decoder/layers/self_attention/query/kernel"}


def test_nothing_is_fused_unless_asked_for() -> None:
    setup = tiny_setup()
    assert setup.fusion == NOTHING_FUSED
    state = start_state(setup)
    assert setup.to_stored(state).params is state.params

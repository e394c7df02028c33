"""Every family takes the same step on every layout as on one device."""

import functools

import jax
import numpy as np
import pytest

from maxtext.parallel.params import named_leaves
from tiny import GEMMA2, GEMMA3, QWEN3, Taken, ragged_batch, take_steps, tiny_setup

KV_REPLICATED = "logical_axis_rules={kv_heads: [], activation_kv_heads: []}"
FAMILIES = {
    "llama": (),
    "llama_mqa_scaled": (
        "base_num_query_heads=4",
        "base_num_kv_heads=1",
        "rope_type=llama3.1",
        "original_max_position_embeddings=16",
        "num_vocab_tiling=2",
        "scan_layers=false",
        "use_iota_embed=true",
    ),
    "qwen3": QWEN3,
}
# Families whose weights lie as Llama's: one layout with everything shows what is their own.
OTHERS = {
    "mistral_and_qwen2": (
        "decoder_block=qwen2",
        "sliding_window_size=9",
        "attention_bias=true",
        "logits_via_embedding=true",
        "rope_type=yarn",
    ),
    "gemma2": (*GEMMA2, "num_vocab_tiling=2"),
    "gemma3": (*GEMMA3, "rope_type=linear", "rope_linear_scaling_factor=8"),
}
# All kinds of Gemma 3's layers, in the loop and after it.
SLOW = {"gemma3_cycle": (*OTHERS["gemma3"], "base_num_decoder_layers=7")}
LAYOUTS = {
    "data": ("ici_data_parallelism=8", "ici_fsdp_parallelism=1"),
    "fsdp": ("ici_fsdp_parallelism=8",),
    "fsdp_tensor": ("ici_fsdp_parallelism=2", "ici_tensor_parallelism=4", KV_REPLICATED),
    "data_fsdp_tensor": (
        "ici_data_parallelism=2",
        "ici_fsdp_parallelism=2",
        "ici_tensor_parallelism=2",
    ),
    "hsdp": ("dcn_data_parallelism=2", "ici_fsdp_parallelism=4"),
    "tensor_sequence": (
        "ici_fsdp_parallelism=2",
        "ici_tensor_sequence_parallelism=4",
        KV_REPLICATED,
    ),
    "fsdp_context_tensor_sequence": (
        "ici_fsdp_parallelism=2",
        "ici_context_parallelism=2",
        "ici_tensor_sequence_parallelism=2",
    ),
    "context": ("ici_fsdp_parallelism=4", "ici_context_parallelism=2"),
    "context_tensor": (
        "ici_context_parallelism=2",
        "ici_tensor_parallelism=4",
        "context_parallel_load_balance=false",
        KV_REPLICATED,
    ),
    "ring": (
        "ici_fsdp_parallelism=2",
        "ici_context_parallelism=4",
        "context_parallel_strategy=ring",
    ),
}
# Parts along each dim, by hand: of the query kernel [layers, embed, heads, head_dim], the last
# feed-forward kernel [layers, mlp, embed] and the embedding [vocab, embed].
PARTS = {
    "data": ((1, 1, 1, 1), (1, 1, 1), (1, 1)),
    "fsdp": ((1, 8, 1, 1), (1, 1, 8), (1, 8)),
    "fsdp_tensor": ((1, 2, 4, 1), (1, 4, 2), (4, 2)),
    "data_fsdp_tensor": ((1, 2, 2, 1), (1, 2, 2), (2, 2)),
    "hsdp": ((1, 4, 1, 1), (1, 1, 4), (1, 4)),
    "tensor_sequence": ((1, 2, 4, 1), (1, 4, 2), (4, 2)),
    "fsdp_context_tensor_sequence": ((1, 2, 2, 1), (1, 2, 2), (2, 2)),
    "ring": ((1, 2, 1, 1), (1, 1, 2), (1, 2)),
}
# Rows of the eight that a device has, where they are more than one.
ROW_PARTS = {
    "fsdp_tensor": 4,
    "data_fsdp_tensor": 2,
    "tensor_sequence": 4,
    "fsdp_context_tensor_sequence": 4,
    "ring": 4,
}
ALL = {**FAMILIES, **OTHERS, **SLOW}
SHOWN = (
    "decoder/layers/self_attention/query/kernel",
    "decoder/layers/mlp/wo/kernel",
    "token_embedder/embedding",
)


def settings(family: str, layout: str) -> tuple[str, ...]:
    one_kv_head = family == "llama_mqa_scaled" and KV_REPLICATED not in LAYOUTS[layout]
    return (*ALL[family], *LAYOUTS[layout], *((KV_REPLICATED,) if one_kv_head else ()))


@functools.cache
def on_one_device(family: str) -> Taken:
    return take_steps(tiny_setup(*ALL[family]), ragged_batch())


@functools.cache
def on_eight(family: str, layout: str) -> Taken:
    return take_steps(tiny_setup(*settings(family, layout), devices=8), ragged_batch())


# Rows split over devices are a matter of attention: families differ in what it sees.
SPLIT = (
    "tensor_sequence",
    "fsdp_context_tensor_sequence",
    "context",
    "context_tensor",
    "ring",
)
FAST = [
    ("llama", "tensor_sequence"),
    ("llama", "fsdp_context_tensor_sequence"),
    ("llama", "ring"),
    ("gemma2", "ring"),
    ("gemma3", "fsdp_context_tensor_sequence"),
]


def slow(family: str, layout: str):
    return pytest.param(family, layout, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        *((family, layout) for family in FAMILIES for layout in LAYOUTS if layout not in SPLIT),
        ("gemma2", "data_fsdp_tensor"),
        *(slow(one, "data_fsdp_tensor") for one in (*OTHERS, *SLOW) if one != "gemma2"),
        *FAST,
        *(
            slow(family, layout)
            for family in ("llama", "llama_mqa_scaled", "gemma3")
            for layout in SPLIT
            if (family, layout) not in FAST
        ),
    ],
)
def test_every_layout_takes_the_same_step(family: str, layout: str) -> None:
    want, got = on_one_device(family), on_eight(family, layout)
    assert got.metrics.loss == pytest.approx(want.metrics.loss, rel=1e-6)
    assert got.metrics.grad_norm == pytest.approx(want.metrics.grad_norm, rel=1e-5)
    assert got.metrics.total_weights == want.metrics.total_weights
    # The first update of adam is the sign of the gradient, so a gradient near zero may flip it:
    # moments show what weights cannot.
    for name in ("mu", "nu"):
        one, other = moments(got, name), moments(want, name)
        for leaf, value in other.items():
            bound = 1e-5 * np.abs(value).max()
            np.testing.assert_allclose(one[leaf], value, rtol=0, atol=bound, err_msg=leaf)
    for leaf, value in want.params.items():
        sure = np.abs(moments(want, "mu")[leaf]) > 1e-4 * np.abs(moments(want, "mu")[leaf]).max()
        np.testing.assert_allclose(
            got.params[leaf][sure], value[sure], rtol=1e-5, atol=1e-6, err_msg=leaf
        )


def moments(taken: Taken, name: str) -> dict[str, np.ndarray]:
    (adam,) = (
        part for part in jax.tree.leaves(taken.state.opt_state, is_leaf=is_adam) if is_adam(part)
    )
    return {leaf: np.asarray(value) for leaf, value in named_leaves(getattr(adam, name)).items()}


def is_adam(part: object) -> bool:
    return hasattr(part, "mu")


@pytest.mark.parametrize("layout", PARTS)
def test_the_compiled_program_splits_weights_as_the_table_says(layout: str) -> None:
    taken = on_eight("llama", layout)
    state, batch, _ = taken.compiled.input_shardings[0]
    shardings, shapes = named_leaves(state.params), taken.params
    parts = [
        tuple(
            whole // part
            for whole, part in zip(
                shapes[name].shape, shardings[name].shard_shape(shapes[name].shape), strict=True
            )
        )
        for name in SHOWN
    ]
    assert tuple(parts) == PARTS[layout]
    # Whole rows on each device, in whatever parts it computes them.
    assert batch.inputs.shard_shape((8, 32)) == (ROW_PARTS.get(layout, 1), 32)
    setup = tiny_setup(*settings("llama", layout), devices=8)
    want = named_leaves(setup.abstract)
    for name, sharding in named_leaves(state).items():
        assert sharding.is_equivalent_to(want[name].sharding, want[name].ndim), name
    outputs = named_leaves(taken.compiled.output_shardings[0])
    for name, sharding in outputs.items():
        assert sharding.is_equivalent_to(want[name].sharding, want[name].ndim), name


FUSED = ("fused_qkv=true", "fused_mlp=true")
# Updates that are smooth in the gradient, so that weights show what gradients do.
SMOOTH = ("adam_eps=1e-3", "gradient_clipping_threshold=0.5")
MHA = "llama_mha"
ACCUMULATED = (
    "gradient_accumulation_steps=2",
    "per_device_batch_size=0.5",
    "scan_layers=false",
    "remat_policy=minimal",
)
# With the slow ones, every layout and every family at least once.
FUSED_CELLS = [
    ("llama", "fsdp_tensor", ()),
    ("mistral_and_qwen2", "data_fsdp_tensor", ("shard_optimizer_over_data=true",)),
    ("gemma3", "fsdp_context_tensor_sequence", ()),
]
SLOW_FUSED_CELLS = [
    ("llama", "data", ()),
    ("llama_mqa_scaled", "fsdp", ()),
    ("llama", "data_fsdp_tensor", ACCUMULATED),
    ("gemma2", "hsdp", ("shard_optimizer_over_data=true",)),
    ("mistral_and_qwen2", "tensor_sequence", ()),
    ("llama", "tensor_sequence", ()),
    ("qwen3", "context", ()),
    ("llama_mqa_scaled", "context_tensor", ()),
    ("gemma2", "ring", ()),
    ("gemma3_cycle", "fsdp_tensor", ()),
    (MHA, "tensor", ()),
]


@functools.cache
def apart_on_one_device(family: str) -> Taken:
    keys = ("base_num_kv_heads=8",) if family == MHA else ALL[family]
    return take_steps(tiny_setup(*keys, *SMOOTH), ragged_batch(), steps=3)


@pytest.mark.parametrize(
    ("family", "layout", "more"),
    [*FUSED_CELLS, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW_FUSED_CELLS)],
)
def test_fused_projections_take_the_steps_of_separate_ones(
    family: str, layout: str, more: tuple[str, ...]
) -> None:
    if family == MHA:
        keys = ("base_num_kv_heads=8", "ici_tensor_parallelism=8", "ici_fsdp_parallelism=1")
    else:
        keys = settings(family, layout)
    want = apart_on_one_device(family)
    setup = tiny_setup(*keys, *SMOOTH, *FUSED, *more, devices=8)
    assert "decoder/layers/self_attention/qkv_proj/kernel" in named_leaves(setup.abstract.params)
    assert "decoder/layers/mlp/wi/kernel" in named_leaves(setup.abstract.params)
    got = take_steps(setup, ragged_batch(), steps=3)
    assert got.metrics.loss == pytest.approx(want.metrics.loss, rel=1e-5)
    assert got.metrics.grad_norm == pytest.approx(want.metrics.grad_norm, rel=1e-5)
    assert got.metrics.param_norm == pytest.approx(want.metrics.param_norm, rel=1e-6)
    assert got.params.keys() == want.params.keys()
    for leaf, value in want.params.items():
        np.testing.assert_allclose(got.params[leaf], value, rtol=1e-5, atol=1e-5, err_msg=leaf)


def test_a_slice_of_hsdp_holds_every_weight_once() -> None:
    taken = on_eight("llama", "hsdp")
    sharding = named_leaves(taken.compiled.input_shardings[0][0].params)[SHOWN[2]]
    places = sharding.devices_indices_map((256, 64))
    slices = [
        {str(places[device]) for device in jax.devices()[half]} for half in (slice(4), slice(4, 8))
    ]
    assert slices[0] == slices[1]
    assert len(slices[0]) == 4

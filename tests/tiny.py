"""T0, the model of the tests, batches for it, and one step of it on any mesh."""

import dataclasses
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from maxtext.config.load import load
from maxtext.config.schema import DEGREES
from maxtext.data.batch import Batch, host_batch
from maxtext.parallel.layout import use_layout
from maxtext.parallel.mesh import make_layout
from maxtext.parallel.params import named_leaves
from maxtext.training.setup import Setup, prepare
from maxtext.training.state import TrainState, abstract_state, fresh_state, state_shardings
from maxtext.training.step import StepMetrics

ROWS, LENGTH, VOCAB = 8, 32, 256
T0 = (
    "base_emb_dim=64",
    "base_num_decoder_layers=2",
    "base_num_query_heads=8",
    "base_num_kv_heads=2",
    "head_dim=8",
    "base_mlp_dim=128",
    f"vocab_size={VOCAB}",
    f"max_target_length={LENGTH}",
    "matmul_precision=highest",
    "learning_rate=1e-2",
    "warmup_steps_fraction=0",
    "gradient_clipping_threshold=0",
    "steps=10",
    "jax_cache_dir=",
)
# What makes another family of it: each with all that is its own.
QWEN3 = ("decoder_block=qwen3", "use_qk_norm=true", "logits_via_embedding=true")
_GEMMA = ("sliding_window_size=9", "mlp_activations=gelu,linear", "logits_via_embedding=true")
GEMMA2 = (
    "decoder_block=gemma2",
    *_GEMMA,
    "attn_logits_soft_cap=5",
    "final_logits_soft_cap=3",
    "query_pre_attn_scalar=12",
    "base_num_decoder_layers=3",
)
GEMMA3 = (
    "decoder_block=gemma3",
    *_GEMMA,
    "use_qk_norm=true",
    "rope_max_timescale=1e6",
    "local_rope_max_timescale=1e4",
)
ONE_DEVICE = {
    f"{family}_{name}_parallelism": 1 for family in ("ici", "dcn") for name in DEGREES.values()
}
_drawn: dict[Hashable, TrainState] = {}
EIGHT, ONE = ("per_device_batch_size=1",), ("per_device_batch_size=8",)


@dataclasses.dataclass(frozen=True)
class Taken:
    """What steps gave, on the host; `params` as checkpoints hold them, whatever is fused."""

    metrics: StepMetrics
    params: dict[str, np.ndarray]
    state: TrainState
    compiled: Any


def tiny_setup(*argv: str, devices: int = 1) -> Setup:
    """T0 with `argv` on the first devices, a global batch of `ROWS` rows a forward pass."""
    given = {text.split("=", 1)[0]: text for text in (*T0, *(EIGHT if devices == 8 else ONE))}
    given |= {text.split("=", 1)[0]: text for text in argv}
    setup = prepare(load(list(given.values()), {}).config)
    if devices == 8:
        return setup
    layout = make_layout(setup.config.mesh, jax.devices()[:devices])
    over_data = setup.config.mesh.shard_optimizer_over_data
    abstract = abstract_state(
        setup.specs, setup.optimizer, layout, over_data=over_data, fusion=setup.fusion
    )
    return dataclasses.replace(setup, layout=layout, abstract=abstract)


def ragged_batch(
    rows: int = ROWS, length: int = LENGTH, *, vocab: int = VOCAB, seed: int = 0
) -> Batch:
    """Random rows of two documents of unequal length and padding, no two rows alike."""
    random = np.random.default_rng(seed)
    planes = np.zeros((4, rows, length), np.int32)
    planes[:2] = random.integers(0, vocab, (2, rows, length))
    for row in range(rows):
        first = random.integers(3, length - 3)
        end = random.integers(first + 1, length + 1)
        planes[2, row, :first] = np.arange(first)
        planes[2, row, first:end] = np.arange(end - first)
        planes[3, row, :first] = 1
        planes[3, row, first:end] = 2
    return host_batch(planes)


def start_state(setup: Setup) -> TrainState:
    """Random weights and a new optimizer; drawn on one device, once for all that share them."""
    fusion = setup.fusion
    config = setup.config
    key = (config.model, config.compute.weight_dtype, config.optimizer, fusion)
    seed = config.training.init_weights_seed
    if (*key, seed) not in _drawn:
        layout = make_layout(config.mesh.model_copy(update=ONE_DEVICE), jax.devices()[:1])
        abstract = abstract_state(setup.specs, setup.optimizer, layout, fusion=fusion)
        with use_layout(layout):
            state = fresh_state(setup.specs, setup.optimizer, abstract, seed=seed, fusion=fusion)
        _drawn[*key, seed] = jax.device_get(state)
    return jax.device_put(_drawn[*key, seed], state_shardings(setup.abstract))


def take_steps(setup: Setup, batch: Batch, *, steps: int = 1) -> Taken:
    """Steps from random weights, each on `batch`."""
    state = start_state(setup)
    with use_layout(setup.layout):
        step = jax.jit(setup.train_step(), donate_argnums=0)
        shape = (batch.inputs.shape[0], batch.inputs.shape[1])
        abstract = (setup.abstract, setup.abstract_batch(shape), setup.abstract_rate())
        compiled = step.lower(*abstract).compile()
        placed = jax.device_put(batch, setup.batch_sharding(shape))
        metrics = None
        for index in range(steps):
            state, metrics = compiled(state, placed, np.float32(setup.schedule(index)))
    assert metrics is not None
    apart = setup.to_stored(state).params
    params = {name: np.asarray(leaf) for name, leaf in named_leaves(apart).items()}
    return Taken(jax.device_get(metrics), params, state, compiled)

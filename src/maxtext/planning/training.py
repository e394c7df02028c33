"""What training will do on a mesh: memory, FLOPs, what devices send each other."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from maxtext.config.schema import Config, ModelConfig
from maxtext.layers.attentions import HEADS, KV_HEADS
from maxtext.metrics.flops import train_flops
from maxtext.parallel.layout import Axes
from maxtext.parallel.params import named_leaves, select
from maxtext.parallel.stages import stages_from_config
from maxtext.planning.devices import Device, planned_devices
from maxtext.planning.exchanges import Exchanges, training_exchanges
from maxtext.planning.roofline import Seconds, seconds
from maxtext.planning.weights import WeightGroup, weight_groups
from maxtext.training.setup import Setup, make_setup

_RESIDUAL: Axes = ("activation_batch", "activation_norm_length", "activation_embed")
_HIDDEN: Axes = ("activation_batch", "activation_length", "activation_mlp")
# Mesh axes whose collectives are not known.
_UNKNOWN = ("stage", "context", "tensor_sequence")
_LOGITS: Axes = ("activation_batch", "activation_length", "activation_vocab")


@dataclasses.dataclass(frozen=True)
class TrainingMemory:
    """Bytes on a device.

    Attributes:
        weights: The weights.
        optimizer: The optimizer's state, and the number of the step.
        batch: The rows of a step, and its learning rate.
        gradients: Of the weights that are trained, in float32.
        activations: What the forward pass keeps of all layers for the backward pass; None where
            that is not known.
        logits: Of the head, in float32; None likewise.
        host: Of the activations, what lies in the host's memory instead.
    """

    weights: int
    optimizer: int
    batch: int
    gradients: int
    activations: int | None
    logits: int | None
    host: int

    @property
    def arguments(self) -> int:
        """What the program of a step is given."""
        return self.weights + self.optimizer + self.batch

    @property
    def total(self) -> int:
        """All that is known; what one layer needs while it runs comes on top."""
        return self.arguments + self.gradients + (self.activations or 0) + (self.logits or 0)


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """What training does.

    Attributes:
        mesh: The mesh axes that split anything, and their sizes.
        dtype: Of activations.
        weight_dtype: Of weights.
        rows: Of the global batch.
        length: Tokens of a row.
        remat_policy: Which activations are kept.
        weights: By group.
        memory: On a device.
        free_bytes: Of a device, less what `memory` reckons; negative where that does not fit.
        flops: Of a step on a device, recomputation left out.
        exchanges: What devices send each other; None where that is not known.
        not_counted: What is left out of all this, and what is no more than an estimate.
        seconds: How long a step takes at best; None where the device or `exchanges` is not known.
    """

    mesh: Mapping[str, int]
    dtype: str
    weight_dtype: str
    rows: int
    length: int
    remat_policy: str
    weights: tuple[WeightGroup, ...]
    memory: TrainingMemory
    free_bytes: int
    flops: float
    exchanges: Exchanges | None
    not_counted: tuple[str, ...]
    seconds: Seconds | None


def plan_training(
    config: Config, *, num_devices: int, hbm_bytes: int, device: Device | None
) -> TrainingPlan:
    """What training with `config` does.

    Raises:
        ValueError: The mesh does not fit the devices or the model.
    """
    backend = "gpu" if device is None else device.backend
    setup = make_setup(config, planned_devices(num_devices), backend=backend)
    rows, length = setup.batch_shape
    compute, layout = setup.config.compute, setup.layout
    memory = training_memory(setup)
    flops = train_flops(
        named_leaves(setup.specs), setup.architecture, attention=compute.attention, length=length
    )
    on_device = flops.per_token * rows * length / layout.mesh.size
    known = not any(_splits(setup, axis) for axis in _UNKNOWN)
    exchanges = training_exchanges(setup, scatters=True) if known else None
    return TrainingPlan(
        mesh={name: size for name, size in layout.mesh.shape.items() if size > 1},
        dtype=compute.dtype,
        weight_dtype=compute.weight_dtype,
        rows=rows,
        length=length,
        remat_policy=compute.remat_policy,
        weights=weight_groups(setup.fusion.specs(setup.specs), layout),
        memory=memory,
        free_bytes=hbm_bytes - memory.total,
        flops=on_device,
        exchanges=exchanges,
        not_counted=tuple(_not_counted(setup)),
        # The state is read and written once.
        seconds=seconds(device, flops=on_device, hbm=2 * memory.arguments, exchanges=exchanges),
    )


def _not_counted(setup: Setup) -> Iterator[str]:
    yield "what one layer needs while it runs, and copies that the compiler makes"
    if _splits(setup, "stage"):
        yield "activations, logits and collectives of a pipeline"
    for axis in _UNKNOWN[1:]:
        if _splits(setup, axis):
            yield f"collectives: what passes between the parts of a row over {axis} is not known"
    by_hand = _norms_after(setup.architecture.config) or _splits(setup, "tensor_sequence")
    if by_hand and not stages_from_config(setup.config.compute).remat:
        yield "some of what remat_policy=none keeps: of Gemma, and under tensor_sequence"


def _splits(setup: Setup, axis: str) -> bool:
    return setup.layout.mesh.shape.get(axis, 1) > 1


def training_memory(setup: Setup) -> TrainingMemory:
    """The memory of a step."""
    state = setup.abstract
    trained: Any = select(setup.stored.params, setup.optimizer.trainable)
    places = setup.train_step().update_shardings
    gradients = sum(
        math.prod(place.shard_shape(leaf.shape)) * 4
        for leaf, place in zip(jax.tree.leaves(trained), jax.tree.leaves(places), strict=True)
    )
    piped = _splits(setup, "stage")
    activations, host = (None, 0) if piped else _activations(setup)
    return TrainingMemory(
        weights=_held(state.params),
        optimizer=_held((state.opt_state, state.step)),
        batch=_held(setup.abstract_batch(setup.batch_shape)) + _held(setup.abstract_rate()),
        gradients=gradients,
        activations=activations,
        logits=None if piped else _logits(setup),
        host=host,
    )


def _held(tree: Any) -> int:
    """Bytes of a tree of abstract arrays on a device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * jnp.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _activations(setup: Setup) -> tuple[int, int]:
    """Bytes that are kept of all layers on a device, and of those in the memory of the host."""
    stages = stages_from_config(setup.config.compute)
    model = setup.architecture
    size = jnp.dtype(setup.config.compute.dtype).itemsize
    named = _named_tensors(setup, size)
    layer_input = _part(setup, _RESIDUAL, (model.config.emb_dim,)) * size
    if not stages.remat:
        return len(model.layers) * _everything(setup, size), 0
    saved = layer_input + sum(named[name] for name in stages.saved)
    host = sum(named[name] for name in stages.offloaded)
    return len(model.layers) * saved, len(model.layers) * host


def _named_tensors(setup: Setup, size: int) -> dict[str, int]:
    """Bytes of each tensor that a remat policy can name, of one layer on a device."""
    config = setup.architecture.config
    heads = _part(setup, HEADS, (config.num_query_heads, config.head_dim))
    kv = _part(setup, KV_HEADS, (config.num_kv_heads, config.head_dim)) * size
    residual = _part(setup, _RESIDUAL, (config.emb_dim,)) * size
    hidden = _part(setup, _HIDDEN, (config.mlp_dim,)) * size
    return {
        "query_proj": heads * size,
        "key_proj": kv,
        "value_proj": kv,
        # With the normalizer of each query and head, in float32.
        "attention_out": heads * size + heads // config.head_dim * 4,
        "out_proj": residual,
        "mlpwi_0": hidden,
        "mlpwi_1": hidden if len(config.mlp_activations) == 2 else 0,
        # Nothing in the backward pass reads it, but for a norm after it.
        "mlpwo": residual if _norms_after(config) else 0,
    }


def _everything(setup: Setup, size: int) -> int:
    """What one layer keeps on a device where nothing is computed again.

    Of each norm its input, twice that, both over its root mean square, that itself and its scale,
    all in float32, and its output; projections, rotated; the halves of the feed-forward layer,
    what their product is made of, and it; kernels, where they are cast.
    """
    named, config = _named_tensors(setup, size), setup.architecture.config
    tokens = _part(setup, _RESIDUAL[:2], ())
    vectors = [(named["out_proj"] // size, tokens, config.emb_dim)]
    vectors *= 4 if _norms_after(config) else 2
    if config.use_qk_norm:
        for name in ("query_proj", "key_proj"):
            heads = named[name] // size // config.head_dim
            vectors.append((named[name] // size, heads, config.head_dim))
    norms = sum(4 * (3 * numbers + 2 * roots + scale) for numbers, roots, scale in vectors)
    cast = size != jnp.dtype(setup.config.compute.weight_dtype).itemsize
    held = setup.stored.params.decoder.groups.values() if cast else ()
    layers = len(setup.architecture.layers)
    kernels = sum(_held(group) // 4 * size for group in held) // layers
    return (
        norms
        + 2 * named["out_proj"]
        + named["query_proj"]
        + named["attention_out"]
        + named["key_proj"]
        + named["value_proj"]
        + 3 * (named["mlpwi_0"] + named["mlpwi_1"])
        + kernels
    )


def _logits(setup: Setup) -> int:
    """Of as many tiles of the vocabulary as there are at once."""
    config = setup.architecture.config
    tiles = setup.config.compute.num_vocab_tiling
    return _part(setup, _LOGITS, (config.vocab_size,)) // tiles * 4


def _part(setup: Setup, axes: Axes, dims: tuple[int, ...]) -> int:
    """Numbers of an activation [rows, length, *dims] on a device, in one pass of a step."""
    rows, length = setup.batch_shape
    shape = (rows // setup.config.training.gradient_accumulation_steps, length, *dims)
    return math.prod(setup.layout.sharding(axes, shape).shard_shape(shape))


def _norms_after(config: ModelConfig) -> bool:
    return config.decoder_block in ("gemma2", "gemma3")

"""Layers in stages on different devices, through which microbatches of the batch pass.

All stages run at once, each on a microbatch of its own, as one program that is vectorized over the
mesh axis `stage`; then each hands what it made to the next. Microbatches stand in a ring of as many
places: one at each stage, the others in a queue before the first stage, whose places are split over
the stages too. What leaves the last stage goes to the end of the queue, so the same queue holds
what has yet to come in, what goes round again (`num_repeats`) and what is done.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from maxtext.parallel.layout import (
    Axes,
    Layout,
    MeshAxes,
    constrain,
    current_layout,
    use_layout_in_jit,
)
from maxtext.parallel.params import pytree
from maxtext.parallel.stages import LayerFn, Stages, remat_policy, run_layers, split_stack
from maxtext.types import Array, Float, Int

STAGE, FSDP = "stage", "fsdp"
# The logical axis of what each stage has of its own.
_STAGES = "pipeline_stages"
_ROWS = ("activation_batch",)
_ACTIVATION = ("activation_batch", "activation_norm_length", "activation_embed")
_WEIGHTS = "pipeline_weights"


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """How layers lie in stages, and how microbatches pass through them.

    Attributes:
        num_stages: Devices, or groups of them, that hold different layers.
        layers_per_stage: Layers that a microbatch passes at a stage before it goes on.
        num_repeats: Times that it goes round all stages, through other layers each time.
        num_microbatches: Parts of the batch; a multiple of the stages, twice that if `delayed`.
        delayed: What a stage makes is on its way for a whole iteration, while all stages compute,
            so that nobody waits for it.
        gather_once: Gather weights that are split over `fsdp` once a step, not in each iteration.
        remat_iterations: The remat policy is applied to a whole iteration: between stages only
            their inputs are kept.
        remat_layers: It is applied to each layer.
        scan: Iterations are a loop; False unrolls it.
    """

    num_stages: int
    layers_per_stage: int
    num_repeats: int
    num_microbatches: int
    delayed: bool = False
    gather_once: bool = False
    remat_iterations: bool = True
    remat_layers: bool = False
    scan: bool = True

    def __post_init__(self) -> None:
        queued = self.num_microbatches - self.hop * self.num_stages
        assert queued >= 0, self
        assert queued % self.num_stages == 0, self

    @property
    def num_layers(self) -> int:
        """Layers in all stages; those after them run outside."""
        return self.num_stages * self.layers_per_stage * self.num_repeats

    @property
    def hop(self) -> int:
        """Iterations from one stage to the next."""
        return 2 if self.delayed else 1

    @property
    def num_iterations(self) -> int:
        """Times that all stages run; each is busy in num_microbatches * num_repeats of them."""
        return self.num_microbatches * self.num_repeats + self.hop * (self.num_stages - 1)

    def held(self, time: int) -> np.ndarray:
        """Which microbatch stands in each place after `time` iterations, [stages, places].

        Places of a stage: what it works on, what is on its way to the next one if `delayed`, its
        part of the queue. Microbatches are numbered by the places that they start from.
        """
        return self.entering[self._entry(time) % self.num_microbatches]

    @property
    def entering(self) -> np.ndarray:
        """Which microbatch the first stage works on in each iteration, [microbatches]."""
        return np.argsort(self._entry(0) % self.num_microbatches, axis=None)

    def _entry(self, time: int) -> np.ndarray:
        """The iteration in which what stands in each place after `time` is at the first stage."""
        stages, hop = np.arange(self.num_stages)[:, None], self.hop
        queued = self.num_microbatches // self.num_stages - hop
        moving = -hop * stages - np.arange(hop)
        # A place of the queue comes up each time that all others have.
        waiting = stages * queued + (np.arange(queued) - time) % max(1, queued) + 1
        return time + np.concatenate([moving, waiting], axis=1)


@dataclasses.dataclass(frozen=True)
class Stack:
    """Layers of equal weights.

    Attributes:
        layers: What layers are told of some rows, to the first layers, which repeat from then on.
        specs: Declares the weights of one.
        weights: With a leading dim of layers.
        per_layer: A tree of arrays with that dim, of which each layer gets its slice.
    """

    layers: Callable[[Any], Sequence[LayerFn]]
    specs: Any
    weights: Any
    per_layer: Any


def run_stack(
    pipeline: Pipeline | None, stages: Stages, stack: Stack, x: Float[Array, "B L D"], rows: Any
) -> Float[Array, "B L D"]:
    """Applies the layers in order: those of a pipeline, then the others.

    Args:
        pipeline: None runs all layers on all devices.
        stages: How the layers of one stage, and those outside of stages, run.
        stack: The layers.
        x: Input of the first one.
        rows: A tree of arrays [B, ...]: what layers are told of the rows.
    """
    if pipeline is None:
        return run_layers(stages, stack.layers(rows), stack.weights, x, stack.per_layer)
    slices = (stack.weights, stack.per_layer)
    inside, outside = split_stack(slices, pipeline.num_layers)
    weights, per_layer = inside
    piped = dataclasses.replace(stack, weights=weights, per_layer=per_layer)
    x = _run_pipeline(pipeline, stages, piped, x, rows)
    weights, per_layer = outside
    if jax.tree.leaves(weights)[0].shape[0] == 0:
        return x
    layers = stack.layers(rows)
    first = pipeline.num_layers % len(layers)
    return run_layers(stages, [*layers[first:], *layers[:first]], weights, x, per_layer)


def _run_pipeline(
    pipeline: Pipeline, stages: Stages, stack: Stack, x: jax.Array, rows: Any
) -> jax.Array:
    layout = current_layout()
    assert layout is not None, "a pipeline needs a mesh"
    inner = stage_layout(layout)
    with use_layout_in_jit(inner):
        split = functools.partial(_split_rows, pipeline, ways=inner.ways("activation_batch"))
        rows = jax.tree.map(lambda leaf: constrain(split(leaf), None, *_row_axes(leaf)), rows)
        per_layer = jax.tree.map(lambda leaf: _by_stage(pipeline, leaf), stack.per_layer)
        run = _iteration(pipeline, stages, stack, (_placed(pipeline, stack), per_layer), rows)
        ring = _ring(pipeline, split(x))

        def iterate(ring: Ring, time: jax.Array) -> tuple[Ring, None]:
            return _turned(ring, run(ring.state, time), time), None

        times = jnp.arange(pipeline.num_iterations)
        ring, _ = jax.lax.scan(iterate, ring, times, unroll=not pipeline.scan)
        out = _joined_rows(_microbatches(pipeline, ring), ways=inner.ways("activation_batch"))
    return constrain(out, *_ACTIVATION)


def stage_layout(layout: Layout) -> Layout:
    """The rules of a stage: all as outside, but that `stage` is taken."""
    return dataclasses.replace(layout, rules=_without(layout, STAGE) | {_STAGES: (STAGE,)})


def _without(layout: Layout, taken: str) -> dict[str, MeshAxes]:
    """The rules without one mesh axis."""
    return {
        name: tuple(axis for axis in axes if axis != taken) for name, axes in layout.rules.items()
    }


@contextlib.contextmanager
def stage_rules(pipeline: Pipeline | None) -> Generator[None]:
    """Makes `constrain` follow the rules of a stage inside the block, if there are stages."""
    layout = current_layout()
    if pipeline is None or layout is None:
        yield
        return
    with use_layout_in_jit(stage_layout(layout)):
        yield


def _row_axes(leaf: jax.Array) -> tuple[str | None, ...]:
    return (*_ROWS, *(None for _ in leaf.shape[1:]))


def _split_rows(pipeline: Pipeline, x: jax.Array, *, ways: int) -> jax.Array:
    """Arrays [B, ...] by microbatch, [microbatches, B / microbatches, ...].

    Each has rows of all of the `ways` that the rules of a stage split rows into. So where `stage`
    splits them further, as the least of the axes, each stage has its microbatches already.
    """
    parts = x.reshape(ways, pipeline.num_microbatches, -1, *x.shape[1:]).swapaxes(0, 1)
    return parts.reshape(pipeline.num_microbatches, -1, *x.shape[1:])


def _joined_rows(x: jax.Array, *, ways: int) -> jax.Array:
    """The inverse of `_split_rows`."""
    parts = x.reshape(x.shape[0], ways, -1, *x.shape[2:]).swapaxes(0, 1)
    return parts.reshape(-1, *x.shape[2:])


def _by_stage(pipeline: Pipeline, stacked: jax.Array) -> jax.Array:
    """Slices of layers as [repeats, stages, layers of a stage, ...]."""
    shape = (pipeline.num_repeats, pipeline.num_stages, pipeline.layers_per_stage)
    return stacked.reshape(*shape, *stacked.shape[1:])


def _placed(pipeline: Pipeline, stack: Stack) -> Any:
    """The weights by stage, [repeats, stages, layers of a stage, ...], where each is needed.

    In memory a device holds layers that follow each other. Those are the ones of its stage where
    microbatches go round once; else weights come to their stages here, once a step, and their
    gradients go back.
    """

    def one(spec: Any, weight: jax.Array) -> jax.Array:
        axes = (None, _STAGES, None, *spec.axes)
        weight = constrain(weight, _STAGES, *spec.axes)
        if pipeline.num_repeats > 1:
            weight = _dealt(pipeline, spec.axes, weight)
        else:
            weight = constrain(_by_stage(pipeline, weight), *axes)
        return _gathered(weight, axes) if pipeline.gather_once else weight

    return jax.tree.map(one, stack.specs, stack.weights)


def _gathered(weight: jax.Array, axes: Axes) -> jax.Array:
    """The weight, whole on the devices that `fsdp` splits it over; its gradient stays split."""
    layout = current_layout()
    assert layout is not None
    split = layout.sharding(axes, weight.shape)
    whole = dataclasses.replace(layout, rules=_without(layout, FSDP)).sharding(axes, weight.shape)

    @jax.custom_vjp
    def gather(weight: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(weight, whole)

    def forward(weight: jax.Array) -> tuple[jax.Array, None]:
        return gather(weight), None

    def backward(_: None, grad: jax.Array) -> tuple[jax.Array]:
        return (jax.lax.with_sharding_constraint(grad, split),)

    gather.defvjp(forward, backward)
    return gather(weight)


def _dealt(pipeline: Pipeline, axes: Axes, weight: jax.Array) -> jax.Array:
    """Slices of layers that lie in order, dealt to the stages like cards.

    By hand, as the compiler would bring all of them to all devices.
    """
    layout = current_layout()
    assert layout is not None
    rounds = _deal(pipeline.num_stages, pipeline.num_repeats)
    shape = (pipeline.num_repeats, pipeline.num_stages, *_by_stage(pipeline, weight).shape[2:])

    def deal(mine: jax.Array) -> jax.Array:
        blocks = mine.reshape(pipeline.num_repeats, -1, *mine.shape[1:])
        me, dealt = jax.lax.axis_index(STAGE), jnp.zeros_like(blocks)
        for sent, to, place in rounds:
            block = jax.lax.dynamic_index_in_dim(blocks, jnp.asarray(sent)[me], keepdims=False)
            block = jax.lax.ppermute(block, STAGE, list(enumerate(to.tolist())))
            place = jnp.asarray(place)[me]
            dealt = jax.lax.dynamic_update_index_in_dim(dealt, block, place, 0)
        return dealt[:, None]

    return jax.shard_map(
        deal,
        mesh=layout.mesh,
        in_specs=layout.spec((_STAGES, *axes), weight.shape),
        out_specs=layout.spec((None, _STAGES, None, *axes), shape),
        check_vma=False,
    )(weight)


def _deal(stages: int, repeats: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """How blocks get from stage n // repeats, in order, to stage n % stages.

    In each round every stage sends one block and receives one: which of its own, to whom, and the
    place of what it receives.
    """
    common = math.gcd(stages, repeats)
    sender, rounds = np.arange(stages), []
    for step, shift in itertools.product(range(repeats // common), range(common)):
        # Stages that are `stages / common` apart have blocks for the same receivers.
        sent = step * common + (sender // (stages // common) + shift) % common
        number = sender * repeats + sent
        to, place = number % stages, np.empty_like(sender)
        place[to] = number // stages
        rounds.append((sent, to, place))
    return rounds


@pytree
class Ring:
    """Where microbatches stand, [stages, rows, ...] each.

    Attributes:
        state: What stages work on.
        moving: What they made in the iteration before, if it is handed on with delay.
        queue: [places, stages, rows, ...]; the first stage has what enters next.
    """

    state: Float[Array, "stages B L D"]
    moving: Float[Array, "stages B L D"] | None
    queue: Float[Array, "places stages B L D"]


def _ring(pipeline: Pipeline, x: Float[Array, "M B L D"]) -> Ring:
    """The microbatches, each in its first place."""
    places = x.reshape(pipeline.num_stages, -1, *x.shape[1:])
    places = constrain(places, _STAGES, None, *_ACTIVATION)
    return Ring(
        state=places[:, 0],
        moving=places[:, 1] if pipeline.delayed else None,
        queue=places[:, pipeline.hop :].swapaxes(0, 1),
    )


def _microbatches(pipeline: Pipeline, ring: Ring) -> Float[Array, "M B L D"]:
    """The inverse of `_ring`, after all iterations."""
    moving = () if ring.moving is None else (ring.moving,)
    places = jnp.concatenate([jnp.stack([ring.state, *moving]), ring.queue])
    places = constrain(places, None, None, *_ACTIVATION).swapaxes(0, 1)
    order = np.argsort(pipeline.held(pipeline.num_iterations), axis=None)
    return places.reshape(-1, *places.shape[2:])[order]


def _turned(ring: Ring, made: jax.Array, time: jax.Array) -> Ring:
    """The ring one place further, `made` the outputs of all stages."""
    leaving = made if ring.moving is None else ring.moving
    moving = None if ring.moving is None else made
    state, queue = _rolled(leaving, 1), ring.queue
    if queue.shape[0]:
        place = time % queue.shape[0]
        waiting = jax.lax.dynamic_index_in_dim(queue, place, keepdims=False)
        state = _at_stage(0, waiting, state)
        waiting = _at_stage(-1, leaving, _rolled(waiting, -1))
        waiting = constrain(waiting, _STAGES, *_ACTIVATION)
        queue = jax.lax.dynamic_update_index_in_dim(queue, waiting, place, 0)
    return Ring(state=constrain(state, _STAGES, *_ACTIVATION), moving=moving, queue=queue)


def _rolled(x: jax.Array, shift: int) -> jax.Array:
    """What stages hand on: one collective, backward too, where JAX's own roll takes two."""

    @jax.custom_vjp
    def roll(x: jax.Array) -> jax.Array:
        return jnp.roll(x, shift, axis=0)

    def forward(x: jax.Array) -> tuple[jax.Array, None]:
        return roll(x), None

    def backward(_: None, grad: jax.Array) -> tuple[jax.Array]:
        return (jnp.roll(grad, -shift, axis=0),)

    roll.defvjp(forward, backward)
    return roll(x)


def _at_stage(stage: int, one: jax.Array, others: jax.Array) -> jax.Array:
    """`one` at a stage, `others` at the others."""
    chosen = jnp.arange(one.shape[0]) == stage % one.shape[0]
    return jnp.where(chosen.reshape(-1, *(1 for _ in one.shape[1:])), one, others)


def _iteration(
    pipeline: Pipeline, stages: Stages, stack: Stack, slices: Any, rows: Any
) -> Callable[[jax.Array, Int[Array, ""]], jax.Array]:
    """What all stages make of what they hold in an iteration.

    A stage that has nothing to do yet, or any more, hands on what it was given.
    """
    inside = dataclasses.replace(stages, remat=stages.remat and pipeline.remat_layers)

    def one_stage(slices: Any, x: jax.Array, rows: Any, repeat: jax.Array) -> jax.Array:
        weights, per_layer = jax.tree.map(lambda leaf: _slice_of(leaf, repeat), slices)
        weights = jax.tree.map(lambda leaf: checkpoint_name(leaf, _WEIGHTS), weights)
        return run_layers(inside, stack.layers(rows), weights, x, per_layer)

    all_stages = jax.vmap(one_stage, in_axes=(1, 0, 0, 0), spmd_axis_name=STAGE)
    if stages.remat and pipeline.remat_iterations:
        all_stages = jax.checkpoint(all_stages, policy=remat_policy(stages), prevent_cse=False)
    elif pipeline.num_repeats > 1:
        # Else each iteration would keep a copy of the weights that it chose.
        policy = jax.checkpoint_policies.save_anything_except_these_names(_WEIGHTS)
        all_stages = jax.checkpoint(all_stages, policy=policy, prevent_cse=False)

    def run(state: jax.Array, time: jax.Array) -> jax.Array:
        turns = time - pipeline.hop * jnp.arange(pipeline.num_stages)
        which = jnp.asarray(pipeline.entering)[turns % pipeline.num_microbatches]
        repeat, last = turns // pipeline.num_microbatches, pipeline.num_repeats - 1
        mine = jax.tree.map(lambda leaf: _rows_of(leaf, which), rows)
        made = all_stages(slices, state, mine, jnp.clip(repeat, 0, last))
        busy = (repeat >= 0) & (repeat <= last)
        return jnp.where(busy[:, None, None, None], made, state)

    return run


def _slice_of(leaf: Array, repeat: jax.Array) -> jax.Array:
    """What a stage needs of slices [repeats, ...]."""
    if leaf.shape[0] == 1:
        return leaf[0]
    return jax.lax.dynamic_index_in_dim(leaf, repeat, keepdims=False)


def _rows_of(leaf: jax.Array, which: Int[Array, " stages"]) -> jax.Array:
    """Rows [microbatches, ...] of the microbatches that stages work on."""
    return constrain(leaf[which], _STAGES, *_row_axes(leaf[0]))

"""The state of a training run."""

from typing import Any

import jax
import jax.numpy as jnp

from maxtext.models.decoder import Model
from maxtext.models.fusion import NOTHING_FUSED, Fusion
from maxtext.optim.optimizer import Optimizer, optimizer_shardings
from maxtext.parallel import params as specs_of
from maxtext.parallel.layout import Layout
from maxtext.parallel.params import pytree


@pytree
class TrainState:
    """All that a step changes.

    Attributes:
        step: Updates done, an int32 scalar.
        params: Weights, a tree of arrays shaped as `Model`.
        opt_state: State of the optimizer.
    """

    step: Any
    params: Any
    opt_state: Any


def abstract_state(
    specs: Model,
    optimizer: Optimizer,
    layout: Layout,
    *,
    over_data: bool = False,
    fusion: Fusion = NOTHING_FUSED,
) -> TrainState:
    """Shapes, types and shardings of the state. No memory is used.

    Args:
        specs: The weights, declared.
        optimizer: Whose state is part of it.
        layout: Where all of it lies.
        over_data: Split the optimizer's state over the data axis too.
        fusion: Of the weights.

    Raises:
        ValueError: A weight cannot be laid out so.
    """
    params = specs_of.abstract(specs, layout)
    shapes = jax.eval_shape(optimizer.init, params)
    placed = jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
        shapes,
        optimizer_shardings(shapes, params, layout, over_data=over_data),
    )
    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=layout.sharding((), ()))
    fused = specs_of.abstract(fusion.specs(specs), layout)
    return TrainState(step=step, params=fused, opt_state=placed)


def state_shardings(abstract: TrainState) -> TrainState:
    """The shardings of an abstract state."""
    return jax.tree.map(lambda leaf: leaf.sharding, abstract)


def fresh_state(
    specs: Model,
    optimizer: Optimizer,
    abstract: TrainState,
    *,
    seed: int,
    fusion: Fusion = NOTHING_FUSED,
) -> TrainState:
    """Random weights and a new optimizer; the same numbers on every mesh, fused or not."""

    def draw() -> TrainState:
        params: Any = specs_of.initialize(specs, jax.random.key(seed))
        step, opt_state = jnp.zeros((), jnp.int32), optimizer.init(params)
        return TrainState(step=step, params=fusion.joined(params), opt_state=opt_state)

    return jax.jit(draw, out_shardings=state_shardings(abstract))()


def state_from_params(params: Any, optimizer: Optimizer, abstract: TrainState) -> TrainState:
    """Given weights and a new optimizer, at step 0."""
    shardings = state_shardings(abstract)
    opt_state = jax.jit(optimizer.init, out_shardings=shardings.opt_state)(params)
    step = jax.device_put(jnp.zeros((), jnp.int32), shardings.step)
    return TrainState(step=step, params=params, opt_state=opt_state)

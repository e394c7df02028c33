"""A training state with optax's moments, on any mesh, whose numbers are a function of the step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from maxtext.parallel.params import named_leaves, pytree


@pytree
class Weights:
    kernel: Any
    scale: Any
    mask: Any


@pytree
class TrainState:
    step: Any
    params: Weights
    opt_state: Any


MESHES = {"one": (1, 1), "rows": (8, 1), "columns": (1, 8), "both": (2, 4)}
SPECS = {2: PartitionSpec("rows", "columns"), 1: PartitionSpec("rows"), 0: PartitionSpec()}


def _mesh(name: str) -> Mesh:
    shape = MESHES[name]
    devices = jax.devices()[: shape[0] * shape[1]]
    return jax.make_mesh(shape, ("rows", "columns"), (AxisType.Auto,) * 2, devices=devices)


def make_state(step: int, width: int = 16) -> TrainState:
    params = Weights(
        kernel=jnp.sin(jnp.arange(8.0 * width) + step).reshape(8, width),
        scale=jnp.cos(jnp.arange(8.0) + step).astype(jnp.bfloat16),
        mask=jnp.arange(8) % 3 == step % 3,
    )
    opt_state = optax.adamw(1e-3).init({"kernel": params.kernel, "scale": params.scale})
    return TrainState(step=jnp.int32(step), params=params, opt_state=opt_state)


def make_target(mesh: str, width: int = 16) -> TrainState:
    on = _mesh(mesh)
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=NamedSharding(on, SPECS[len(x.shape)])
        ),
        jax.eval_shape(lambda: make_state(0, width)),
    )


@pytest.fixture(scope="session")
def state_on() -> Callable[..., TrainState]:
    """`state_on(mesh, step)`: the state of a step."""

    def state(mesh: str, step: int) -> TrainState:
        shardings = jax.tree.map(lambda leaf: leaf.sharding, make_target(mesh))
        return jax.device_put(make_state(step), shardings)

    return state


@pytest.fixture(scope="session")
def target_on() -> Callable[..., TrainState]:
    """`target_on(mesh, width)`: what to restore into."""
    return make_target


@pytest.fixture(scope="session")
def require_equal() -> Callable[[Any, Any], None]:
    """Asserts that two trees have the same names, types and bits."""

    def require(got: Any, want: Any) -> None:
        got, want = named_leaves(got), named_leaves(want)
        assert list(got) == list(want)
        for name, x in got.items():
            assert x.dtype == want[name].dtype, name
            assert np.asarray(x).tobytes() == np.asarray(want[name]).tobytes(), name

    return require

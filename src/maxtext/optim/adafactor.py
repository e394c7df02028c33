"""Adafactor: second moments of a matrix kept as those of its rows and columns."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from maxtext.parallel.params import Param

# The paper's: epsilon 1 and 2, clipping threshold d, exponent of the second moment's decay.
_EPS_SQUARE, _EPS_SCALE, _CLIP, _EXPONENT = 1e-30, 1e-3, 1.0, 0.8


class AdafactorState(NamedTuple):
    """Running means of squared gradients, in float32.

    Those of a matrix keep its dims, with size 1 where they are means over; None where a weight
    has none.
    """

    count: Any
    rows: Any
    columns: Any
    vectors: Any


@dataclasses.dataclass(frozen=True)
class _Moments:
    """Those of one weight; no pytree, so that a tree of them can be taken apart."""

    rows: jax.Array | None
    columns: jax.Array | None
    vector: jax.Array | None
    direction: jax.Array | None = None


def adafactor(specs: Any) -> optax.GradientTransformation:
    """The gradient over its estimated root mean square, clipped, times the weight's size.

    All is reckoned for each of several stacked weights by itself. A kernel of several dims is the
    matrix of those that it sums over by the rest.

    Source: Shazeer and Stern 2018, arXiv:1804.04235, algorithms 4 to 6, the learning rate taking
        the place of the relative step size.

    Args:
        specs: The weights, declared.
    """

    def init(params: Any) -> AdafactorState:
        def one(_: Any, spec: Param) -> _Moments:
            if not spec.num_in:
                return _Moments(None, None, jnp.zeros(spec.shape, jnp.float32))
            return _Moments(_zeros(spec, spec.out_dims), _zeros(spec, spec.in_dims), None)

        return _state(jnp.zeros((), jnp.int32), jax.tree.map(one, params, specs))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, AdafactorState]:
        count = state.count + 1
        decay = 1.0 - count.astype(jnp.float32) ** -_EXPONENT

        def one(grad: jax.Array, spec: Param, weight: jax.Array, *old: Any) -> _Moments:
            return _updated(grad, weight, spec, decay=decay, old=_Moments(*old))

        old = (state.rows, state.columns, state.vectors)
        moments = jax.tree.map(one, updates, specs, params, *old)
        return _field(moments, "direction"), _state(count, moments)

    return optax.GradientTransformation(init, update)


def _updated(
    grad: jax.Array, weight: jax.Array, spec: Param, *, decay: jax.Array, old: _Moments
) -> _Moments:
    def mean(before: jax.Array, dims: tuple[int, ...]) -> jax.Array:
        square = jnp.square(grad) + _EPS_SQUARE
        return decay * before + (1.0 - decay) * jnp.mean(square, dims, keepdims=True)

    rows = columns = vector = None
    if old.rows is not None and old.columns is not None:
        rows, columns = mean(old.rows, spec.out_dims), mean(old.columns, spec.in_dims)
        # Divided first: the product of two small means is no float32.
        second = rows / jnp.mean(rows, spec.in_dims, keepdims=True) * columns
    else:
        assert old.vector is not None
        second = vector = mean(old.vector, ())
    own = spec.in_dims + spec.out_dims
    direction = grad * jax.lax.rsqrt(second)
    direction /= jnp.maximum(1.0, _rms(direction, own) / _CLIP)
    direction *= jnp.maximum(_EPS_SCALE, _rms(weight.astype(jnp.float32), own))
    return _Moments(rows, columns, vector, direction)


def _rms(x: jax.Array, dims: tuple[int, ...]) -> jax.Array:
    return jnp.sqrt(jnp.mean(jnp.square(x), dims, keepdims=True))


def _zeros(spec: Param, dims: tuple[int, ...]) -> jax.Array:
    shape = (1 if dim in dims else size for dim, size in enumerate(spec.shape))
    return jnp.zeros(tuple(shape), jnp.float32)


def _state(count: jax.Array, moments: Any) -> AdafactorState:
    parts = (_field(moments, name) for name in ("rows", "columns", "vector"))
    return AdafactorState(count, *parts)


def _field(moments: Any, name: str) -> Any:
    return jax.tree.map(lambda one: getattr(one, name), moments)

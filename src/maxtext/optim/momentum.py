"""Momentum, as it is and with each matrix orthogonalized."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from maxtext.parallel.params import Param
from maxtext.types import Array, DType, Float

# Of the polynomial that `orthogonalized` applies five times.
_NEWTON_SCHULZ, _ITERATIONS, _EPS = (3.4445, -4.7750, 2.0315), 5, 1e-7


class MomentumState(NamedTuple):
    """Sums of past gradients, each step's weighed less than the next one's."""

    mu: Any


def momentum(decay: float, *, dtype: DType | None) -> optax.GradientTransformation:
    """The gradient plus `decay` times what it was the step before.

    Source: Sutskever et al. 2013, equation 1, with the learning rate outside.
    """

    def init(params: Any) -> MomentumState:
        return MomentumState(optax.tree.zeros_like(params, dtype=dtype))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, MomentumState]:
        del params
        mu = jax.tree.map(lambda grad, old: grad + decay * old, updates, state.mu)
        return mu, MomentumState(mu)

    return optax.GradientTransformation(init, update)


def muon(
    specs: Any, *, beta: float, consistent_rms: float, dtype: DType | None
) -> optax.GradientTransformation:
    """Nesterov momentum, each matrix replaced by one with (nearly) all singular values 1.

    Stacked matrices are taken one by one. A kernel of several dims is the matrix of those that it
    sums over by the rest: all heads of an attention kernel are one matrix.

    Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025,
        arXiv:2502.16982, equation 4 (`consistent_rms`).

    Args:
        specs: The matrices, declared.
        beta: Decay of the momentum.
        consistent_rms: Each update is given about this root mean square, so that a learning rate
            of AdamW's suits it; 0: its spectral norm is sqrt(max(1, fan-out / fan-in)).
        dtype: Of the momentum; None: the weight's.
    """
    plain = momentum(beta, dtype=dtype)

    def direction(grad: jax.Array, mu: jax.Array, spec: Param) -> jax.Array:
        fan_in = math.prod(spec.shape[dim] for dim in spec.in_dims)
        fan_out = math.prod(spec.shape[dim] for dim in spec.out_dims)
        matrices = (grad + beta * mu).reshape(*spec.shape[: spec.num_stacked], fan_in, fan_out)
        scale = math.sqrt(max(1.0, fan_out / fan_in))
        if consistent_rms:
            scale = consistent_rms * math.sqrt(max(fan_in, fan_out))
        return scale * orthogonalized(matrices).reshape(spec.shape)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, MomentumState]:
        mu, state = plain.update(updates, state, params)
        return jax.tree.map(direction, updates, mu, specs), state

    return optax.GradientTransformation(plain.init, update)


def orthogonalized(x: Float[Array, "*stacked M N"]) -> Float[Array, "*stacked M N"]:
    """About U V^T of the singular value decomposition U S V^T of each matrix.

    Its singular values are between 0.7 and 1.2 where those of x are not tiny beside its norm.

    Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon, Newton-Schulz iteration.
    """
    tall = x.shape[-2] > x.shape[-1]
    x = jnp.matrix_transpose(x) if tall else x
    norm = jnp.sqrt(jnp.sum(jnp.square(x), axis=(-2, -1), keepdims=True))
    a, b, c = _NEWTON_SCHULZ

    def iterate(_: int, x: jax.Array) -> jax.Array:
        gram = x @ jnp.matrix_transpose(x)
        return a * x + (b * gram + c * gram @ gram) @ x

    x = jax.lax.fori_loop(0, _ITERATIONS, iterate, x / (norm + _EPS))
    return jnp.matrix_transpose(x) if tall else x

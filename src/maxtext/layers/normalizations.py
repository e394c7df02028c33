"""Normalization layers."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.nn.initializers import ones, zeros

from maxtext.ops.normalization import rms_norm
from maxtext.parallel.params import param, pytree
from maxtext.types import DType, Weight


@pytree
class Norm:
    """Weights of an RMSNorm."""

    scale: Weight


@pytree
class CenteredNorm:
    """Weights of an RMSNorm whose scale is kept less 1, as Gemma's is."""

    scale: Weight


type AnyNorm = Norm | CenteredNorm
# Declares a norm over vectors of one size: `norm_params` or `centered_norm_params`.
type NormParams = Callable[..., AnyNorm]


def norm_params(size: int, *, dtype: DType, axis: str = "norm") -> Norm:
    """Declares the weights of `norm` over a dim of this logical axis."""
    return Norm(scale=param((size,), (axis,), ones, dtype))


def centered_norm_params(size: int, *, dtype: DType, axis: str = "norm") -> CenteredNorm:
    """Declares the weights of `norm` where they are kept less 1."""
    return CenteredNorm(scale=param((size,), (axis,), zeros, dtype))


def norm(params: AnyNorm, x: jax.Array, *, eps: float) -> jax.Array:
    """`x` over its root mean square along the last dim, times the scale."""
    if isinstance(params, CenteredNorm):
        return rms_norm(x, params.scale.astype(jnp.float32) + 1.0, eps=eps)
    return rms_norm(x, params.scale, eps=eps)

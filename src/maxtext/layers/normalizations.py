"""Normalization layers."""

import jax
from jax.nn.initializers import ones

from maxtext.ops.normalization import rms_norm
from maxtext.parallel.params import param, pytree
from maxtext.types import DType, Weight


@pytree
class Norm:
    """Weights of an RMSNorm."""

    scale: Weight


def norm_params(size: int, *, dtype: DType) -> Norm:
    """Declares the weights of `norm`."""
    return Norm(scale=param((size,), ("norm",), ones, dtype))


def norm(params: Norm, x: jax.Array, *, eps: float) -> jax.Array:
    """`x` over its root mean square along the last dim, times the scale."""
    return rms_norm(x, params.scale, eps=eps)

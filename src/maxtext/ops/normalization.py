"""Normalizations."""

import jax
import jax.numpy as jnp

from maxtext.types import Array, Float


def rms_norm(
    x: Float[Array, "*B D"], scale: Float[Array, " D"], *, eps: float
) -> Float[Array, "*B D"]:
    """Each vector over its root mean square, times `scale`; computed in float32.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.
    """
    x32 = x.astype(jnp.float32)
    inverse_rms = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (x32 * inverse_rms * scale.astype(jnp.float32)).astype(x.dtype)

"""Dropout."""

import jax
import jax.numpy as jnp

from maxtext.types import Array, Float, PRNGKeyArray


def dropout(
    x: Float[Array, "*B D"], key: PRNGKeyArray | None, *, rate: float
) -> Float[Array, "*B D"]:
    """`x` with a part `rate` of its elements zeroed and the rest scaled by 1 / (1 - rate).

    Without a key it is `x` itself. The same key gives the same elements on every mesh.

    Source: Srivastava et al. 2014, JMLR 15, section 4, in its inverted form.
    """
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), 0).astype(x.dtype)

"""Dropout."""

import jax
import jax.numpy as jnp

from maxtext.types import Array, Float, Int, PRNGKeyArray


def dropout(
    x: Float[Array, "B *D"], key: PRNGKeyArray | None, *, rate: float, rows: Int[Array, " B"]
) -> Float[Array, "B *D"]:
    """`x` with a part `rate` of its elements zeroed and the rest scaled by 1 / (1 - rate).

    Without a key it is `x` itself. Which elements of a row depends on the key and on the number
    of the row alone: not on the mesh, and not on the rows that are computed with it.

    Args:
        rows: The number of each row.

    Source: Srivastava et al. 2014, JMLR 15, section 4, in its inverted form.
    """
    if key is None or rate == 0.0:
        return x
    draw = jax.vmap(
        lambda row: jax.random.bernoulli(jax.random.fold_in(key, row), 1.0 - rate, x.shape[1:])
    )
    keep = draw(rows)
    return jnp.where(keep, x / (1.0 - rate), 0).astype(x.dtype)

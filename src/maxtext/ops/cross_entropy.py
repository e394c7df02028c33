"""Cross entropy under an output head, the vocabulary whole or in tiles."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from maxtext.types import Array, Float, Int

type Project = Callable[[Float[Array, "B L D"], Float[Array, "D V"]], Float[Array, "B L V"]]


def cross_entropy(
    hidden: Float[Array, "B L D"],
    kernel: Float[Array, "D V"],
    targets: Int[Array, "B L"],
    *,
    project: Project,
    num_tiles: int = 1,
) -> tuple[Float[Array, "B L"], Float[Array, "B L"]]:
    """Negative log-likelihood of each target and logsumexp of its logits, in nats, float32.

    Args:
        project: Makes logits of hidden states and (a tile of) the kernel.
        num_tiles: Divisor of V. With more than one, only V / num_tiles logits of a token exist at
            a time, in the backward pass too, at the price of one more product.
    """

    def terms(tile_and_index: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        tile, index = tile_and_index
        logits = project(hidden, tile).astype(jnp.float32)
        column = (targets // num_tiles)[..., None]
        chosen = jnp.take_along_axis(logits, column, axis=-1)[..., 0]
        mine = targets % num_tiles == index
        return jax.nn.logsumexp(logits, axis=-1), jnp.where(mine, chosen, 0.0)

    if num_tiles == 1:
        normalizer, chosen = terms((kernel, jnp.zeros((), jnp.int32)))
    else:
        # Tile t holds the tokens that are t modulo num_tiles, so that a kernel whose vocabulary
        # is split over devices has an equal part of each tile on each of them.
        tiles = jnp.moveaxis(kernel.reshape(kernel.shape[0], -1, num_tiles), 2, 0)
        partial = jax.lax.map(jax.checkpoint(terms), (tiles, jnp.arange(num_tiles)))
        normalizer, chosen = jax.nn.logsumexp(partial[0], axis=0), jnp.sum(partial[1], axis=0)
    return normalizer - chosen, normalizer

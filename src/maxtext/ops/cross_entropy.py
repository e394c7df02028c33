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

    A negative target stands for none: what is given for it is the logsumexp, twice.

    Args:
        project: Makes logits of hidden states and (a tile of) the kernel.
        num_tiles: Divisor of V. With more than one, only V / num_tiles logits of a token exist at
            a time, in the backward pass too, at the price of one more product.
    """
    dtype = hidden.dtype
    # The tiles' gradients of the hidden states are added up in float32.
    hidden = hidden.astype(jnp.float32)

    def terms(tile_and_index: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        tile, index = tile_and_index
        logits = project(hidden.astype(dtype), tile).astype(jnp.float32)
        column = jnp.where(targets % num_tiles == index, targets // num_tiles, -1)
        return _logit_terms(logits, column)

    if num_tiles == 1:
        normalizer, chosen = terms((kernel, jnp.zeros((), jnp.int32)))
    else:
        # Tile t holds the tokens that are t modulo num_tiles, so that a kernel whose vocabulary
        # is split over devices has an equal part of each tile on each of them.
        tiles = jnp.moveaxis(kernel.reshape(kernel.shape[0], -1, num_tiles), 2, 0)
        partial = jax.lax.map(jax.checkpoint(terms), (tiles, jnp.arange(num_tiles)))
        normalizer, chosen = jax.nn.logsumexp(partial[0], axis=0), jnp.sum(partial[1], axis=0)
    return normalizer - chosen, normalizer


@jax.custom_vjp
def _logit_terms(
    logits: Float[Array, "B L V"], column: Int[Array, "B L"]
) -> tuple[Float[Array, "B L"], Float[Array, "B L"]]:
    """Logsumexp of the logits, and the logit in `column`, 0 where that is -1.

    The backward pass takes exp anew: autodiff would keep a second array as large as the logits.
    The column is found by comparison: indexing would need logits of other devices where the
    vocabulary is split, and a scatter backward.
    """
    highest = jnp.max(logits, axis=-1)
    total = jnp.sum(jnp.exp(logits - highest[..., None]), axis=-1)
    chosen = jnp.sum(jnp.where(_is_column(logits, column), logits, 0.0), axis=-1)
    return highest + jnp.log(total), chosen


def _is_column(logits: jax.Array, column: jax.Array) -> jax.Array:
    return jnp.arange(logits.shape[-1]) == column[..., None]


def _forward(
    logits: jax.Array, column: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]:
    terms = _logit_terms(logits, column)
    return terms, (logits, column, terms[0])


def _backward(
    saved: tuple[jax.Array, jax.Array, jax.Array], grads: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, None]:
    logits, column, normalizer = saved
    grad_normalizer, grad_chosen = (grad[..., None] for grad in grads)
    probabilities = jnp.exp(logits - normalizer[..., None])
    picked = jnp.where(_is_column(logits, column), grad_chosen, 0.0)
    return probabilities * grad_normalizer + picked, None


_logit_terms.defvjp(_forward, _backward)

"""Attention of a ragged batch to a paged cache, in plain XLA.

Tokens of all sequences lie flat, one sequence after the other; the keys and values of each lie in
pages of a cache that all share. What a rank of the batch sees is all there is: these functions know
no mesh.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from maxtext.ops.attention import (
    Arithmetic,
    AttentionPattern,
    Operands,
    Partial,
    attend,
    attention_to_none,
    by_group,
    by_head,
    in_reach,
    merged,
)
from maxtext.parallel.params import pytree
from maxtext.types import Array, DType, Float, Int

# Tokens of a sequence's cache that are read at once, and queries of a prompt that read them.
KEY_BLOCK = 128
QUERY_BLOCK = 64
_ARITHMETIC = Arithmetic()


@pytree
class Cache:
    """Keys and values of one layer: the keys of a head are at 0, its values at 1.

    Attributes:
        values: What is stored, [pages, page_size, kv_heads, 2, head_dim], or the same numbers
            with other dims after the first two: a cache that were reshaped on the way into a step
            and out of it would be copied by XLA:CPU.
        scales: What int8 numbers are multiplied by; None for other types.
    """

    values: jax.Array
    scales: jax.Array | None


@pytree
class Ragged:
    """Where the tokens of a batch belong. Sequences with a single token come first.

    Of several ranks it holds, in each array, the entries of one after those of the other.

    Attributes:
        starts: The first token of each sequence; one entry more, which is the end of the last.
        lengths: Tokens of each sequence up to the last one in this batch, cached ones included.
        page_table: The pages of each sequence, in order.
        counts: Sequences of a single token, the same or those with prompts only, and all.
    """

    starts: Int[Array, " ends"]
    lengths: Int[Array, " S"]
    page_table: Int[Array, "S P"]
    counts: Int[Array, " counts"]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a cache."""

    pages: int
    page_size: int
    kv_heads: int
    head_dim: int

    @property
    def values(self) -> tuple[int, ...]:
        """Shape of the numbers."""
        return (self.pages, self.page_size, self.kv_heads, 2, self.head_dim)

    def num_bytes(self, dtype: DType) -> int:
        """Bytes of all of it."""
        scale = 4 / self.head_dim if jnp.dtype(dtype) == jnp.int8 else 0
        return round(math.prod(self.values) * (jnp.dtype(dtype).itemsize + scale))


def paged_attention(
    q: Float[Array, "T H N"],
    k: Float[Array, "T K N"],
    v: Float[Array, "T K N"],
    cache: Cache,
    ragged: Ragged,
    *,
    pattern: AttentionPattern,
) -> tuple[Float[Array, "T H N"], Cache]:
    """Writes the new keys and values, then attends causally to all of each sequence.

    Sequences with one token are taken together, the others in blocks of their queries; what there
    is none of costs nothing, and nothing depends on how much the cache or the table could hold.

    Source: Kwon et al. 2023, arXiv:2309.06180, section 4; Milakov and Gimelshein 2018,
        arXiv:1805.02867, for the softmax over blocks.
    """
    tokens = q.shape[0]
    sequence, places = token_places(ragged, tokens)
    cache = _write(cache, jnp.stack([k, v], axis=2), (sequence, places), ragged)
    rows = min(tokens, ragged.lengths.shape[0])
    single = jnp.arange(rows) < ragged.counts[0]
    own = jnp.where(single, places[:rows], -1)
    out = _attend(q[:rows, None], own[:, None], ragged.page_table[:rows], cache, pattern)[:, 0]
    return _attend_prompts(q, out, ragged, cache, pattern), cache


def token_places(ragged: Ragged, tokens: int) -> tuple[Int[Array, " T"], Int[Array, " T"]]:
    """The sequence of each token and its place in it, -1 for padding."""
    token = jnp.arange(tokens)
    last = ragged.lengths.shape[0] - 1
    sequence = jnp.searchsorted(ragged.starts[1:], token, side="right", method="compare_all")
    sequence = jnp.minimum(sequence, last)
    end = ragged.starts[1:][sequence]
    places = ragged.lengths[sequence] - end + token
    real = token < ragged.starts[ragged.counts[2]]
    return sequence, jnp.where(real, places, -1)


def _write(
    cache: Cache,
    new: Float[Array, "T K 2 N"],
    where: tuple[Int[Array, " T"], Int[Array, " T"]],
    ragged: Ragged,
) -> Cache:
    """The cache with the new tokens in their places; those of padding are dropped."""
    sequence, places = where
    pages, page_size = cache.values.shape[:2]
    page = ragged.page_table[sequence, jnp.maximum(places, 0) // page_size]
    at = (jnp.where(places >= 0, page, pages), places % page_size)
    if cache.scales is None:
        new = new.astype(cache.values.dtype).reshape(len(new), *cache.values.shape[2:])
        return Cache(values=cache.values.at[at].set(new, mode="drop"), scales=None)
    largest = jnp.max(jnp.abs(new.astype(jnp.float32)), axis=-1)
    scales = jnp.maximum(largest, jnp.finfo(jnp.float32).tiny * 127) / 127
    whole = jnp.round(new.astype(jnp.float32) / scales[..., None]).astype(jnp.int8)
    return Cache(
        values=cache.values.at[at].set(whole, mode="drop"),
        scales=cache.scales.at[at].set(scales, mode="drop"),
    )


def _read(
    cache: Cache, pages: Int[Array, "R P"], width: int, dtype: DType
) -> tuple[Float[Array, "R K S N"], Float[Array, "R K S N"]]:
    """Keys and values of whole pages, gathered head by head: XLA copies what it must transpose."""
    page_size = cache.values.shape[1]
    values = cache.values.reshape(len(cache.values), page_size, -1, 2, width)
    page = jnp.repeat(pages, page_size, axis=1)[:, None]
    slot = jnp.tile(jnp.arange(page_size), pages.shape[1])
    head = jnp.arange(values.shape[2])[:, None]

    def part(index: int) -> jax.Array:
        found = values[page, slot, head, index]
        if cache.scales is not None:
            found = found * cache.scales[page, slot, head, index][..., None]
        return found.astype(dtype)

    return part(0), part(1)


def _attend(
    q: Float[Array, "R Q H N"],
    places: Int[Array, "R Q"],
    page_table: Int[Array, "R P"],
    cache: Cache,
    pattern: AttentionPattern,
) -> Float[Array, "R Q H N"]:
    """Attention of queries to the cached tokens up to their own; any number where that is -1."""
    page_size, *stored = cache.values.shape[1:]
    at_once = max(1, min(KEY_BLOCK // page_size, page_table.shape[1]))
    size = at_once * page_size
    # Slices that would pass the end are moved back by XLA: a table of whole blocks has none.
    page_table = jnp.pad(page_table, [(0, 0), (0, -page_table.shape[1] % at_once)])
    grouped = by_group(q, math.prod(stored) // (2 * q.shape[-1]))
    window = pattern.window
    first = jnp.zeros((), jnp.int32)
    if window is not None:
        earliest = jnp.where(places >= 0, places, jnp.iinfo(places.dtype).max)
        first = jnp.maximum(jnp.min(earliest) - window + 1, 0) // size

    def body(index: jax.Array, so_far: Partial) -> Partial:
        pages = jax.lax.dynamic_slice_in_dim(page_table, index * at_once, at_once, axis=1)
        k, v = _read(cache, pages, q.shape[-1], q.dtype)
        distance = places[:, :, None] - (index * size + jnp.arange(size))
        seen = in_reach(distance, window=window)
        return merged(
            so_far, attend(Operands(grouped, k, v), seen, pattern=pattern, arithmetic=_ARITHMETIC)
        )

    end = jnp.maximum(jnp.max(places) // size + 1, first)
    attended = jax.lax.fori_loop(first, end, body, attention_to_none(grouped))
    return by_head(attended.out).astype(q.dtype)


def _attend_prompts(
    q: Float[Array, "T H N"],
    out: Float[Array, "R H N"],
    ragged: Ragged,
    cache: Cache,
    pattern: AttentionPattern,
) -> Float[Array, "T H N"]:
    """What sequences of several tokens attend to, one block of queries at a time, after `out`.

    The last block of a sequence passes its end; what it leaves there is overwritten by the next.
    """
    tokens, starts = q.shape[0], ragged.starts
    block = min(QUERY_BLOCK, tokens)
    q = jnp.pad(q, [(0, block), (0, 0), (0, 0)])
    out = jnp.pad(out, [(0, q.shape[0] - out.shape[0]), (0, 0), (0, 0)])
    index = jnp.arange(ragged.lengths.shape[0])
    prompts = (index >= ragged.counts[0]) & (index < ragged.counts[2])
    blocks = jnp.where(prompts, -(-(starts[1:] - starts[:-1]) // block), 0)
    ends = jnp.cumsum(blocks)

    def body(number: jax.Array, out: jax.Array) -> jax.Array:
        sequence = jnp.searchsorted(ends, number, side="right", method="compare_all")
        first = starts[sequence] + (number - ends[sequence] + blocks[sequence]) * block
        token, end = first + jnp.arange(block), starts[sequence + 1]
        places = jnp.where(token < end, ragged.lengths[sequence] - end + token, -1)
        attended = _attend(
            jax.lax.dynamic_slice_in_dim(q, first, block)[None],
            places[None],
            ragged.page_table[sequence][None],
            cache,
            pattern,
        )
        return jax.lax.dynamic_update_slice_in_dim(out, attended[0], first, axis=0)

    return jax.lax.fori_loop(0, ends[-1], body, out)[:tokens]

"""Causal attention where devices hold parts of each row; each function runs inside a shard_map.

A row is a sequence of chunks, and a `RowSplit` says which of them a device holds. Work is a list
of pairs, a chunk of queries and one of keys that it sees. All devices run as many pairs at a time:
one that has fewer fills up with pairs that the mask hides whole.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from maxtext.ops.attention import (
    SAVED_NAME,
    Arithmetic,
    Attended,
    AttentionPattern,
    Operands,
    Partial,
    attend,
    attend_gradients,
    attended,
    attention_to_none,
    by_head,
    merged,
    operands,
    visible,
)
from maxtext.parallel.rows import RowSplit
from maxtext.types import Array, Bool, Float, Int


@dataclasses.dataclass(frozen=True)
class Round:
    """Pairs to run while one set of keys is at hand; arrays are [devices, pairs].

    Attributes:
        split: What each device holds.
        shift: Device i has the keys of device i - shift, or those of all if they are gathered.
        held: Which of its chunks of queries a device takes.
        at_hand: Which of the chunks of keys at hand.
        query_chunk: What chunk of the row these queries are.
        key_chunk: And these keys.
    """

    split: RowSplit
    shift: int
    held: np.ndarray
    at_hand: np.ndarray
    query_chunk: np.ndarray
    key_chunk: np.ndarray


@dataclasses.dataclass(frozen=True)
class Context:
    """How devices that hold parts of a row come to attend to all of it.

    Attributes:
        split: What each holds.
        ring: Keys and values go round the devices, so that none holds more than two parts at a
            time; else each gathers them all.
        arithmetic: Types.
    """

    split: RowSplit
    ring: bool
    arithmetic: Arithmetic

    def gathered(self, x: jax.Array) -> jax.Array:
        """Chunks of keys that are at hand from the start."""
        return x if self.ring else jax.lax.all_gather(x, self.split.axes, tiled=True)

    def rotated[T](self, tree: T, shift: int) -> T:
        """What the device `shift` before holds."""
        if shift % self.split.ways == 0:
            return tree
        ways = range(self.split.ways)
        moves = [(source, (source + shift) % self.split.ways) for source in ways]
        return jax.tree.map(lambda x: jax.lax.ppermute(x, self.split.axes, moves), tree)

    def returned(self, x: jax.Array, shift: int) -> jax.Array:
        """Sums for the chunks at hand, added up where these chunks are held."""
        if self.ring:
            return self.rotated(x, -shift)
        return jax.lax.psum_scatter(x, self.split.axes, tiled=True)


def rounds(context: Context, length: int, window: int | None) -> Iterator[Round]:
    """The work of rows of `length` tokens: a round for each device of a ring, or one in all."""
    split, ring = context.split, context.ring
    mine, size = split.held, length // split.held.size
    everything = np.broadcast_to(mine.reshape(-1), (split.ways, mine.size))
    for shift in range(split.ways if ring else 1):
        theirs = np.roll(mine, shift, axis=0) if ring else everything
        distance = mine[:, :, None] - theirs[:, None, :]
        needed = distance >= 0
        if window is not None:
            needed &= (distance - 1) * size + 1 < window
        most = needed.sum(axis=(1, 2)).max()
        if most == 0:
            continue
        # Those that are needed come first.
        chosen = np.argsort(~needed.reshape(split.ways, -1), axis=1, kind="stable")[:, :most]
        held, at_hand = np.divmod(chosen, theirs.shape[1])
        take = functools.partial(np.take_along_axis, axis=1)
        yield Round(split, shift, held, at_hand, take(mine, held), take(theirs, at_hand))


def context_attention(
    q: Float[Array, "B L H N"],
    k: Float[Array, "B L K N"],
    v: Float[Array, "B L K N"],
    segments: Int[Array, "B S"],
    *,
    context: Context,
    pattern: AttentionPattern,
) -> Float[Array, "B L H N"]:
    """`dot_product_attention` of this device's queries to the keys of all devices.

    Args:
        segments: Of whole rows, in their own order.

    Source: Liu et al. 2023, arXiv:2310.01889, for the ring; Dao 2023, arXiv:2307.08691, section
        3.1, for adding up parts of a softmax.
    """
    return _attention(q, k, v, segments, context, pattern)


class _Pair(NamedTuple):
    """Chunks of queries and keys by where a device has them, and which keys are seen."""

    held: jax.Array
    at_hand: jax.Array
    seen: Bool[Array, "B L S"]


class _Keys(NamedTuple):
    """Keys and values at hand, or sums of gradients for them; a leading dim of chunks."""

    k: jax.Array
    v: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    context: Context,
    pattern: AttentionPattern,
) -> jax.Array:
    return _forward(q, k, v, segments, context, pattern)[0]


def _forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    context: Context,
    pattern: AttentionPattern,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    mine = _chunked(operands(q, k, v), context.split.held.shape[1])
    at_hand, shift = _Keys(context.gathered(mine.k), context.gathered(mine.v)), 0
    sums = attention_to_none(mine.q)
    for one in rounds(context, segments.shape[1], pattern.window):
        at_hand, shift = context.rotated(at_hand, one.shift - shift), one.shift

        def run(sums: Partial, pair: _Pair, at_hand: _Keys = at_hand) -> Partial:
            chunks = Operands(mine.q[pair.held], *(x[pair.at_hand] for x in at_hand))
            part = attend(chunks, pair.seen, pattern=pattern, arithmetic=context.arithmetic)
            both = merged(Partial(*(x[pair.held] for x in sums)), part)
            return Partial(*(_put(x, y, pair.held) for x, y in zip(sums, both, strict=True)))

        sums = _over_pairs(run, sums, one=one, segments=segments, window=pattern.window)
    out = checkpoint_name(by_head(_joined(sums.out)).astype(v.dtype), SAVED_NAME)
    normalizer = checkpoint_name(_joined(sums.normalizer), SAVED_NAME)
    return out, (q, k, v, segments, out, normalizer)


def _backward(
    context: Context, pattern: AttentionPattern, saved: tuple[jax.Array, ...], grad: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q, k, v, segments, out, normalizer = saved
    mine = _chunked(operands(q, k, v), context.split.held.shape[1])
    known = _chunked(attended(grad, out, normalizer), context.split.held.shape[1])
    at_hand, shift = _Keys(context.gathered(mine.k), context.gathered(mine.v)), 0
    of_q, *of_keys = (jnp.zeros(x.shape, jnp.float32) for x in (mine.q, *at_hand))
    sums = Operands(of_q, *of_keys)
    for one in rounds(context, segments.shape[1], pattern.window):
        at_hand, of_keys = context.rotated((at_hand, _Keys(sums.k, sums.v)), one.shift - shift)
        sums, shift = Operands(sums.q, *of_keys), one.shift

        def run(sums: Operands, pair: _Pair, at_hand: _Keys = at_hand) -> Operands:
            chunks = Operands(mine.q[pair.held], *(x[pair.at_hand] for x in at_hand))
            of_queries = Attended(*(x[pair.held] for x in known))
            grads = attend_gradients(
                chunks, of_queries, pair.seen, pattern=pattern, arithmetic=context.arithmetic
            )
            places = (pair.held, pair.at_hand, pair.at_hand)
            added = (_put(x, x[i] + y, i) for x, y, i in zip(sums, grads, places, strict=True))
            return Operands(*added)

        sums = _over_pairs(run, sums, one=one, segments=segments, window=pattern.window)
    grad_k, grad_v = (_joined(context.returned(x, shift)).swapaxes(1, 2) for x in (sums.k, sums.v))
    grad_q = by_head(_joined(sums.q))
    return grad_q.astype(q.dtype), grad_k.astype(k.dtype), grad_v.astype(v.dtype), None


_attention.defvjp(_forward, _backward)


def _over_pairs[T](
    run: Callable[[T, _Pair], T],
    state: T,
    *,
    one: Round,
    segments: Int[Array, "B S"],
    window: int | None,
) -> T:
    """`state = run(state, pair)` for every pair of this device in a round."""
    chunks = segments.reshape(segments.shape[0], one.split.held.size, -1)
    place = jnp.arange(chunks.shape[2])

    def step(state: T, pair: tuple[jax.Array, ...]) -> tuple[T, None]:
        held, at_hand, *row_chunks = pair
        queries, keys = ((i * place.size + place, chunks[:, i]) for i in row_chunks)
        seen = visible(queries, keys, window=window)
        return run(state, _Pair(held, at_hand, seen)), None

    me = jax.lax.axis_index(one.split.axes)
    tables = (one.held, one.at_hand, one.query_chunk, one.key_chunk)
    return jax.lax.scan(step, state, tuple(jnp.asarray(table, jnp.int32)[me] for table in tables))[
        0
    ]


def _chunked[T: (Operands, Attended)](parts: T, chunks: int) -> T:
    """Arrays [..., L, N] with a leading dim of chunks."""

    def one(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(*x.shape[:-2], chunks, -1, x.shape[-1]), -3, 0)

    return jax.tree.map(one, parts)


def _joined(x: jax.Array) -> jax.Array:
    """The inverse of `_chunked`, of one array."""
    x = jnp.moveaxis(x, 0, -3)
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def _put(whole: jax.Array, part: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(whole, part, index, 0)

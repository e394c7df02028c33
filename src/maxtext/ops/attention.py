"""Causal attention over whole sequences; grouped queries everywhere, MHA and MQA its ends."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from maxtext.types import Array, Bool, Float, Int

# The name under which a remat policy keeps what the backward pass needs of attention's results.
SAVED_NAME = "attention_out"
MAX_BLOCKS = 8
MIN_BLOCK = 64


@dataclasses.dataclass(frozen=True)
class AttentionPattern:
    """What is fixed about the attention of a layer.

    Attributes:
        scale: What the products of queries and keys are multiplied by.
        window: Tokens that a query sees, itself the last of them; None is all up to itself.
        soft_cap: Scores s become soft_cap * tanh(s / soft_cap); None leaves them as they are.
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        assert self.window is None or self.window > 0, self
        assert self.soft_cap is None or self.soft_cap > 0, self


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """Types that attention is reckoned in.

    Attributes:
        float32_qk_product: Multiply queries and keys in float32 whatever their type.
        float32_logits: Take the softmax in float32.
    """

    float32_qk_product: bool = False
    float32_logits: bool = True


class Operands(NamedTuple):
    """Queries in groups and the keys and values that they attend to, or the gradients of these."""

    q: Float[Array, "B K G L N"]
    k: Float[Array, "B K S N"]
    v: Float[Array, "B K S N"]


class Partial(NamedTuple):
    """Attention of queries to some of the keys.

    Attributes:
        out: What they attend to, if these are all.
        normalizer: Logsumexp of the scores, which is the weight of `out` beside other keys.
    """

    out: Float[Array, "B K G L N"]
    normalizer: Float[Array, "B K G L 1"]


class Attended(NamedTuple):
    """What the backward pass knows of each query.

    Attributes:
        grad: Gradient of what it attends to in all.
        normalizer: Logsumexp of its scores over all keys that it sees.
        through_total: What its scores all get of the gradient, by the total that divides them.
    """

    grad: Float[Array, "B K G L N"]
    normalizer: Float[Array, "B K G L 1"]
    through_total: Float[Array, "B K G L 1"]


def num_query_blocks(length: int) -> int:
    """Blocks that `dot_product_attention` takes the queries in; each sees no key after its end."""
    fitting = (n for n in range(MAX_BLOCKS, 0, -1) if length % n == 0)
    return next(n for n in fitting if n == 1 or length // n >= MIN_BLOCK)


def query_blocks(length: int, *, window: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Each block of queries, and the keys that it is multiplied with: whole blocks of them."""
    size = length // num_query_blocks(length)
    for start in range(0, length, size):
        before = start if window is None else min(start, window - 1)
        first = start - -(-before // size) * size
        yield slice(start, start + size), slice(first, start + size)


def dot_product_attention(
    q: Float[Array, "B L H N"],
    k: Float[Array, "B L K N"],
    v: Float[Array, "B L K N"],
    segments: Int[Array, "B L"],
    *,
    pattern: AttentionPattern,
    arithmetic: Arithmetic = Arithmetic(),
) -> Float[Array, "B L H N"]:
    """Softmax attention to earlier tokens of the same segment, in plain XLA.

    Queries are taken in `query_blocks`, whose scores exist one block at a time; the backward pass
    computes them anew. So nearly half of the products are left out, more where there is a window,
    and no array grows with the square of the length but by the block.

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1; Ainslie et al. 2023,
        arXiv:2305.13245, for the groups; Dao et al. 2022, arXiv:2205.14135, appendix B.2, for the
        backward pass; Gemma Team 2024, arXiv:2408.00118, section 2, for the soft cap.
    """
    return _attention(q, k, v, segments, pattern, arithmetic)


class _Block(NamedTuple):
    """A block of queries, the keys that it is multiplied with, and which of them it sees."""

    queries: slice
    keys: slice
    part: Operands
    seen: Bool[Array, "B L S"]


def _blocks(whole: Operands, segments: jax.Array, *, window: int | None) -> Iterator[_Block]:
    places = jnp.arange(segments.shape[1])
    for queries, keys in query_blocks(segments.shape[1], window=window):
        seen = visible(
            (places[queries], segments[:, queries]),
            (places[keys], segments[:, keys]),
            window=window,
        )
        part = Operands(whole.q[:, :, :, queries], whole.k[:, :, keys], whole.v[:, :, keys])
        yield _Block(queries, keys, part, seen)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    pattern: AttentionPattern,
    arithmetic: Arithmetic,
) -> jax.Array:
    return _forward(q, k, v, segments, pattern, arithmetic)[0]


def _forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    pattern: AttentionPattern,
    arithmetic: Arithmetic,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    outs, normalizers = [], []
    for one in _blocks(operands(q, k, v), segments, window=pattern.window):
        out, normalizer = attend(one.part, one.seen, pattern=pattern, arithmetic=arithmetic)
        outs.append(out.astype(v.dtype))
        normalizers.append(normalizer)
    out = checkpoint_name(by_head(jnp.concatenate(outs, axis=3)), SAVED_NAME)
    normalizer = checkpoint_name(jnp.concatenate(normalizers, axis=3), SAVED_NAME)
    return out, (q, k, v, segments, out, normalizer)


def _backward(
    pattern: AttentionPattern,
    arithmetic: Arithmetic,
    saved: tuple[jax.Array, ...],
    grad: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q, k, v, segments, out, normalizer = saved
    whole, known = operands(q, k, v), attended(grad, out, normalizer)
    grad_q = []
    grad_k, grad_v = (jnp.zeros(x.shape, jnp.float32) for x in (whole.k, whole.v))
    for one in _blocks(whole, segments, window=pattern.window):
        of_block = Attended(*(x[:, :, :, one.queries] for x in known))
        grads = attend_gradients(
            one.part, of_block, one.seen, pattern=pattern, arithmetic=arithmetic
        )
        grad_q.append(grads.q.astype(q.dtype))
        grad_k = _add_at(grad_k, grads.k, one.keys.start)
        grad_v = _add_at(grad_v, grads.v, one.keys.start)
    return (
        by_head(jnp.concatenate(grad_q, axis=3)),
        grad_k.swapaxes(1, 2).astype(k.dtype),
        grad_v.swapaxes(1, 2).astype(v.dtype),
        None,
    )


def _add_at(total: jax.Array, part: jax.Array, start: int) -> jax.Array:
    """The total with a part added to its keys from `start` on."""
    old = jax.lax.slice_in_dim(total, start, start + part.shape[2], axis=2)
    return jax.lax.dynamic_update_slice_in_dim(total, old + part, start, axis=2)


_attention.defvjp(_forward, _backward)


def by_group(x: Float[Array, "B L H N"], kv_heads: int) -> Float[Array, "B K G L N"]:
    """Heads in the groups that share a key, before the length."""
    grouped = x.reshape(*x.shape[:2], kv_heads, x.shape[2] // kv_heads, x.shape[3])
    return grouped.transpose(0, 2, 3, 1, 4)


def by_head(x: Float[Array, "B K G L N"]) -> Float[Array, "B L H N"]:
    """The inverse of `by_group`."""
    moved = x.transpose(0, 3, 1, 2, 4)
    return moved.reshape(*moved.shape[:2], -1, moved.shape[4])


def operands(
    q: Float[Array, "B L H N"], k: Float[Array, "B S K N"], v: Float[Array, "B S K N"]
) -> Operands:
    """What `attend` takes, of what layers make."""
    return Operands(by_group(q, k.shape[2]), k.swapaxes(1, 2), v.swapaxes(1, 2))


def attended(
    grad: Float[Array, "B L H N"],
    out: Float[Array, "B L H N"],
    normalizer: Float[Array, "B K G L 1"],
) -> Attended:
    """What `attend_gradients` takes, of what attention returned and its gradient."""
    product = grad.astype(jnp.float32) * out.astype(jnp.float32)
    kv_heads = normalizer.shape[1]
    through_total = by_group(jnp.sum(product, axis=-1, keepdims=True), kv_heads)
    return Attended(by_group(grad, kv_heads), normalizer, through_total)


def visible(
    queries: tuple[Int[Array, " L"], Int[Array, "B L"]],
    keys: tuple[Int[Array, " S"], Int[Array, "B S"]],
    *,
    window: int | None,
) -> Bool[Array, "B L S"]:
    """Which keys each query sees; both are given by their place in the row and their segments."""
    (query_places, query_segments), (key_places, key_segments) = queries, keys
    distance = query_places[:, None] - key_places
    return in_reach(distance, window=window) & (
        query_segments[:, :, None] == key_segments[:, None, :]
    )


def in_reach(distance: Int[Array, "..."], *, window: int | None) -> Bool[Array, "..."]:
    """Whether keys so far before the queries are seen; negative distances are behind them."""
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def attend(
    operands: Operands,
    seen: Bool[Array, "B L S"],
    *,
    pattern: AttentionPattern,
    arithmetic: Arithmetic,
) -> Partial:
    """Attention of some queries to some keys.

    A query that sees none of them gets a finite number, which has no weight: as normalizer it has
    the lowest number there is.
    """
    scores, _ = _scores(operands, pattern, arithmetic)
    v = operands.v
    scores = jnp.where(seen[:, None, None], scores, jnp.finfo(scores.dtype).min)
    highest = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - highest)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    out = jnp.einsum(
        "bkgls,bksn->bkgln", weights.astype(v.dtype), v, preferred_element_type=scores.dtype
    )
    normalizer = highest.astype(jnp.float32) + jnp.log(total.astype(jnp.float32))
    return Partial(out / total, normalizer)


def attention_to_none(queries: Float[Array, "..."]) -> Partial:
    """Attention to no key: what others are merged with first."""
    lowest = jnp.full((*queries.shape[:-1], 1), jnp.finfo(jnp.float32).min)
    return Partial(jnp.zeros(queries.shape, jnp.float32), lowest)


def merged(one: Partial, other: Partial) -> Partial:
    """Attention to two sets of keys, from that to each, in float32."""
    normalizer = jnp.logaddexp(one.normalizer, other.normalizer)
    first, second = (part.out * jnp.exp(part.normalizer - normalizer) for part in (one, other))
    return Partial((first + second).astype(jnp.float32), normalizer)


def attend_gradients(
    operands: Operands,
    known: Attended,
    seen: Bool[Array, "B L S"],
    *,
    pattern: AttentionPattern,
    arithmetic: Arithmetic,
) -> Operands:
    """Gradients of the operands of `attend`, in float32."""
    (q, k, v), (grad, normalizer, through_total) = operands, known
    in_float32 = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    scores, slope = _scores(operands, pattern, arithmetic)
    weights = jnp.where(seen[:, None, None], jnp.exp(scores - normalizer), 0.0)
    grad_v = in_float32("bkgls,bkgln->bksn", weights.astype(v.dtype), grad)
    grad_weights = in_float32("bkgln,bksn->bkgls", grad, v)
    grad_scores = weights * (grad_weights - through_total) * slope
    product_type = jnp.float32 if arithmetic.float32_qk_product else q.dtype
    grad_scores, q, k = (x.astype(product_type) for x in (grad_scores, q, k))
    grad_q = in_float32("bkgls,bksn->bkgln", grad_scores, k)
    grad_k = in_float32("bkgls,bkgln->bksn", grad_scores, q)
    return Operands(grad_q, grad_k, grad_v)


def _scores(
    operands: Operands, pattern: AttentionPattern, arithmetic: Arithmetic
) -> tuple[jax.Array, jax.Array | float]:
    """Scores, and their derivatives by the products of queries and keys.

    The products are scaled, not the queries: these would be rounded once more.
    """
    q, k = operands.q, operands.k
    if arithmetic.float32_qk_product:
        q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    dtype = jnp.float32 if arithmetic.float32_logits else q.dtype
    scores = jnp.einsum("bkgln,bksn->bkgls", q, k, preferred_element_type=dtype) * pattern.scale
    if pattern.soft_cap is None:
        return scores, pattern.scale
    bounded = jnp.tanh(scores / pattern.soft_cap)
    return bounded * pattern.soft_cap, (1.0 - jnp.square(bounded)) * pattern.scale

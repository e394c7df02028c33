"""Paged attention against float64 numpy, over batches of every make and pages in any order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.ops.attention import AttentionPattern, dot_product_attention
from maxtext.ops.paged_attention import Cache, Ragged, paged_attention

PAGE_SIZE, PAGES, TABLE = 8, 80, 40
SHAPE = (6, 209)  # one for most batches, so that a pattern is compiled once
PATTERNS = [
    AttentionPattern(scale=0.3),
    AttentionPattern(scale=0.3, window=1),
    AttentionPattern(scale=0.3, window=130),
    AttentionPattern(scale=1.0, window=9, soft_cap=3.0),
]
# For each sequence the tokens in its cache and the new ones: single tokens first.
BATCHES = {
    "singles": [(0, 1), (5, 1), (129, 1), (200, 1)],
    "prompts": [(0, 7), (0, 70), (13, 130)],
    "both": [(300, 1), (7, 1), (0, 2), (8, 64), (128, 5)],
    "one": [(16, 1)],
}


def reference(q, k, v, pattern: AttentionPattern) -> np.ndarray:
    """Attention of the last queries of one sequence to all of it."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    before, group = len(k) - len(q), q.shape[1] // k.shape[1]
    for i, h in np.ndindex(q.shape[:2]):
        end = before + i + 1
        first = 0 if pattern.window is None else max(0, end - pattern.window)
        scores = k[first:end, h // group] @ q[i, h] * pattern.scale
        if pattern.soft_cap is not None:
            scores = pattern.soft_cap * np.tanh(scores / pattern.soft_cap)
        weights = np.exp(scores - scores.max())
        out[i, h] = weights / weights.sum() @ v[first:end, h // group]
    return out


class Case:
    """Random sequences, the cache before the step and the step's arguments, with padding."""

    def __init__(self, batch: str, *, heads: int = 6, kv_heads: int = 2, head_dim: int = 10):
        random = np.random.default_rng(0)
        draw = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
        self.sizes = BATCHES[batch]
        count, tokens = len(self.sizes), sum(new for _, new in self.sizes)
        slots, padded = (count, tokens) if batch == "one" else SHAPE
        pages = iter(random.permutation(PAGES))
        self.q, self.k, self.v = draw(padded, heads, head_dim), [], []
        self.values = draw(PAGES, PAGE_SIZE, kv_heads, 2, head_dim)
        new = np.zeros((2, padded, kv_heads, head_dim), np.float32)
        table = np.full((slots, TABLE), PAGES - 1, np.int32)
        self.starts = np.cumsum([0, *(new for _, new in self.sizes)])
        for index, (cached, fresh) in enumerate(self.sizes):
            length = cached + fresh
            k, v = draw(length, kv_heads, head_dim), draw(length, kv_heads, head_dim)
            for page in range(-(-length // PAGE_SIZE)):
                table[index, page] = next(pages)
            at = table[index, np.arange(cached) // PAGE_SIZE], np.arange(cached) % PAGE_SIZE
            self.values[at] = np.stack([k, v], axis=2)[:cached]
            span = slice(self.starts[index], self.starts[index + 1])
            new[0, span], new[1, span] = k[cached:], v[cached:]
            self.k.append(k)
            self.v.append(v)
        single = sum(new == 1 for _, new in self.sizes)
        lengths = [cached + new for cached, new in self.sizes]
        fill = slots - count
        self.ragged = Ragged(
            starts=jnp.array([*self.starts, *[tokens] * fill], jnp.int32),
            lengths=jnp.array([*lengths, *[0] * fill], jnp.int32),
            page_table=jnp.asarray(table),
            counts=jnp.array([single, single, count], jnp.int32),
        )
        self.new = new

    def run(self, pattern: AttentionPattern, cache: Cache | None = None, dtype=jnp.float32):
        cache = cache or Cache(values=jnp.asarray(self.values, dtype), scales=None)
        q, k, v = (jnp.asarray(x, dtype) for x in (self.q, *self.new))
        out, after = compiled(pattern)(q, k, v, cache, self.ragged)
        assert np.isfinite(np.asarray(out, np.float32)).all()
        return np.asarray(out, np.float32), after

    def want(self, pattern: AttentionPattern) -> np.ndarray:
        spans = zip(self.starts[:-1], self.starts[1:], strict=True)
        parts = [
            reference(self.q[first:end], k, v, pattern)
            for (first, end), k, v in zip(spans, self.k, self.v, strict=True)
        ]
        return np.concatenate(parts)


@functools.cache
def compiled(pattern: AttentionPattern):
    return jax.jit(functools.partial(paged_attention, pattern=pattern))


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
def test_paged_attention_equals_float64(batch: str, pattern: AttentionPattern) -> None:
    case = Case(batch)
    out, after = case.run(pattern)
    want = case.want(pattern)
    np.testing.assert_allclose(out[: len(want)], want, rtol=1e-5, atol=2e-6)
    # The new tokens stand in their places, and nothing else has changed.
    stored = np.array(after.values)
    for index, (k, v) in enumerate(zip(case.k, case.v, strict=True)):
        place = np.arange(len(k))
        table = np.asarray(case.ragged.page_table)
        at = table[index, place // PAGE_SIZE], place % PAGE_SIZE
        np.testing.assert_array_equal(stored[at], np.stack([k, v], axis=2))
        stored[at] = case.values[at]
    np.testing.assert_array_equal(stored, case.values)


def test_a_whole_prompt_attends_as_in_training() -> None:
    case, pattern = Case("prompts"), PATTERNS[3]
    out, _ = case.run(pattern)
    first, end = case.starts[1], case.starts[2]
    q, k, v = (x[None, first:end] for x in (case.q, *case.new))
    q, k, v = (jnp.asarray(x) for x in (q, k, v))
    want = dot_product_attention(q, k, v, jnp.ones((1, 70), jnp.int32), pattern=pattern)
    np.testing.assert_allclose(out[first:end], want[0], rtol=1e-5, atol=2e-6)


def test_bfloat16_and_int8_caches_err_by_their_rounding_alone() -> None:
    case, pattern = Case("both"), PATTERNS[0]
    want = case.want(pattern)
    out, after = case.run(pattern, dtype=jnp.bfloat16)
    assert after.values.dtype == jnp.bfloat16
    np.testing.assert_allclose(out[: len(want)], want, atol=0.03)

    scales = np.abs(case.values).max(axis=-1) / 127
    whole = np.round(case.values / scales[..., None]).astype(np.int8)
    cache = Cache(values=jnp.asarray(whole), scales=jnp.asarray(scales))
    out, after = case.run(pattern, cache)
    assert after.values.dtype == jnp.int8
    # Numbers of up to 4 are rounded to within 4 / 254, scores move by less than 0.05.
    np.testing.assert_allclose(out[: len(want)], want, atol=0.06)
    assert np.abs(out[: len(want)] - want).max() > 1e-4

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import splash_attention

from maxtext.ops.attention import (
    Arithmetic,
    AttentionPattern,
    dot_product_attention,
    num_query_blocks,
    query_blocks,
)
from maxtext.ops.flash_attention import (
    cudnn_flash_attention,
    places_in_segments,
    splash_flash_attention,
)

FULL = AttentionPattern(scale=0.3)
PATTERNS = [
    FULL,
    AttentionPattern(scale=0.3, window=1),
    AttentionPattern(scale=0.3, window=5),
    AttentionPattern(scale=0.3, window=100),
    AttentionPattern(scale=2.0, soft_cap=1.5),
    AttentionPattern(scale=1.0, window=70, soft_cap=3.0),
]
HEADS = [(4, 4), (8, 2), (12, 2), (6, 2), (6, 1)]


def qkv(heads: int, kv_heads: int, *, length: int = 12, head_dim: int = 10, rows: int = 2):
    random = np.random.default_rng(heads * 100 + kv_heads)
    shapes = [(rows, length, count, head_dim) for count in (heads, kv_heads, kv_heads)]
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def segments_of(rows: int, length: int) -> np.ndarray:
    """One document; two and padding; padding before and between."""
    segments = np.zeros((3, length), np.int32)
    segments[0] = 1
    segments[1, : length // 3] = 1
    segments[1, length // 3 : length - 2] = 2
    segments[2, length // 2 : length - 1] = 5
    return segments[:rows]


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, segments: np.ndarray, pattern: AttentionPattern
) -> np.ndarray:
    """Row by row, head by head, query by query."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    group = q.shape[2] // k.shape[2]
    for b, i, h in np.ndindex(q.shape[:3]):
        first = 0 if pattern.window is None else max(0, i - pattern.window + 1)
        seen = [j for j in range(first, i + 1) if segments[b, j] == segments[b, i]]
        scores = k[b, seen, h // group] @ q[b, i, h] * pattern.scale
        if pattern.soft_cap is not None:
            scores = pattern.soft_cap * np.tanh(scores / pattern.soft_cap)
        weights = np.exp(scores - scores.max())
        out[b, i, h] = weights / weights.sum() @ v[b, seen, h // group]
    return out


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_dot_product_attention_equals_float64(
    heads: int, kv_heads: int, pattern: AttentionPattern
) -> None:
    q, k, v = qkv(heads, kv_heads, rows=3)
    segments = segments_of(3, 12)
    got = jax.jit(functools.partial(dot_product_attention, pattern=pattern))(q, k, v, segments)
    np.testing.assert_allclose(got, reference(q, k, v, segments, pattern), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("length", [12, 192])
def test_gradients_are_the_slopes_of_float64(length: int, pattern: AttentionPattern) -> None:
    operands = qkv(4, 2, length=length, rows=2)
    segments = segments_of(2, length)
    random = np.random.default_rng(1)
    probe = random.standard_normal(operands[0].shape).astype(np.float32)

    def total(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        out = dot_product_attention(q, k, v, jnp.asarray(segments), pattern=pattern)
        return jnp.sum(out * probe)

    grads = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*operands)
    for index, grad in enumerate(grads):
        way = random.standard_normal(grad.shape)
        sums = []
        for step in (1e-4, -1e-4):
            moved = [x.astype(np.float64) for x in operands]
            moved[index] += step * way
            sums.append(np.sum(reference(*moved, segments, pattern) * probe))
        slope = (sums[0] - sums[1]) / 2e-4
        assert np.sum(grad * way) == pytest.approx(slope, rel=1e-4, abs=1e-4)


def test_whole_blocks_before_the_window_are_left_out() -> None:
    blocks = list(query_blocks(512, window=65))
    assert blocks[0] == (slice(0, 64), slice(0, 64))
    assert blocks[7] == (slice(448, 512), slice(384, 512))
    assert list(query_blocks(512, window=66))[7] == (slice(448, 512), slice(320, 512))
    assert list(query_blocks(512, window=1))[7] == (slice(448, 512), slice(448, 512))
    assert list(query_blocks(512, window=512)) == list(query_blocks(512))
    products = jax.jit(functools.partial(dot_product_attention, pattern=PATTERNS[2]))
    shapes = [jax.ShapeDtypeStruct((1, 512, 2, 64), jnp.float32)] * 3
    text = products.lower(*shapes, jax.ShapeDtypeStruct((1, 512), jnp.int32)).as_text()
    assert "tensor<1x2x1x64x128xf32>" in text
    assert "tensor<1x2x1x64x192xf32>" not in text


plain = functools.partial(dot_product_attention, pattern=FULL)


def whole_attention(q, k, v, segments):
    """Attention by one softmax over all scores, its gradient by autodiff."""
    rows, length, _, head_dim = q.shape
    grouped = q.reshape(rows, length, k.shape[2], -1, head_dim)
    scores = jnp.einsum("blkgn,bskn->bkgls", grouped, k) * FULL.scale
    seen = jnp.tril(jnp.ones((length, length), bool))
    seen = seen & (segments[:, :, None] == segments[:, None, :])
    weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -1e30), axis=-1)
    return jnp.einsum("bkgls,bskn->blkgn", weights, v).reshape(q.shape)


@pytest.mark.parametrize(("length", "blocks"), [(12, 1), (128, 2), (192, 3), (130, 2), (127, 1)])
def test_blocks_of_queries_change_neither_values_nor_gradients(length: int, blocks: int) -> None:
    assert num_query_blocks(length) == blocks
    operands = qkv(6, 2, length=length, rows=3)
    segments = jnp.asarray(segments_of(3, length))
    probe = np.random.default_rng(1).standard_normal(operands[0].shape).astype(np.float32)

    def both(attend):
        loss = lambda q, k, v: jnp.sum(attend(q, k, v, segments) * probe)  # noqa: E731
        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(*operands)

    got, want = both(plain), both(whole_attention)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)


def test_blocks_add_no_rounding_in_bfloat16() -> None:
    length = 512
    assert num_query_blocks(length) == 8
    segments = jnp.ones((2, length), jnp.int32)
    operands = tuple(jnp.asarray(x, jnp.bfloat16) for x in qkv(4, 2, length=length, head_dim=32))
    probe = np.random.default_rng(1).standard_normal(operands[0].shape).astype(np.float32)

    def gradients(attend, operands):
        loss = lambda q, k, v: jnp.sum(attend(q, k, v, segments) * probe)  # noqa: E731
        return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*operands)

    want = gradients(whole_attention, tuple(x.astype(jnp.float32) for x in operands))
    for ours, whole, exact in zip(
        gradients(plain, operands),
        gradients(whole_attention, operands),
        want,
        strict=True,
    ):
        error, usual = (
            np.linalg.norm(x.astype(np.float32) - exact) for x in (np.asarray(ours), whole)
        )
        assert error < 0.8 * usual


def test_nothing_leaks_from_later_tokens_or_other_documents() -> None:
    q, k, v = qkv(6, 2, rows=3)
    segments = segments_of(3, 12)
    before = np.asarray(plain(*map(jnp.asarray, (q, k, v, segments))))
    here = 7
    others = segments != segments[:, here : here + 1]
    others |= np.arange(12) > here
    k, v = (np.where(others[:, :, None, None], 1e4, x).astype(np.float32) for x in (k, v))
    after = np.asarray(plain(*map(jnp.asarray, (q, k, v, segments))))
    np.testing.assert_array_equal(before[:, here], after[:, here])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("float32_logits", [True, False])
def test_rows_of_padding_are_finite_in_values_and_gradients(
    dtype: str, float32_logits: bool
) -> None:
    operands = [jnp.asarray(x, dtype) for x in qkv(6, 2)]
    segments = jnp.zeros((2, 12), jnp.int32)

    def total(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        out = plain(q, k, v, segments, arithmetic=Arithmetic(float32_logits=float32_logits))
        assert out.dtype == dtype
        return jnp.sum(out.astype(jnp.float32) ** 2)

    value, grads = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(*operands)
    assert np.isfinite(value)
    assert all(np.isfinite(np.asarray(grad, np.float32)).all() for grad in grads)


@pytest.mark.parametrize(
    ("flags", "tolerance"),
    [
        ({}, 0.02),
        ({"float32_qk_product": True}, 0.01),
        ({"float32_logits": False}, 0.03),
    ],
)
def test_bfloat16_is_near_float64(flags: dict[str, bool], tolerance: float) -> None:
    operands = [jnp.asarray(x, jnp.bfloat16) for x in qkv(8, 2, head_dim=64, rows=3)]
    segments = segments_of(3, 12)
    pattern, arithmetic = AttentionPattern(scale=64**-0.5), Arithmetic(**flags)
    attend = functools.partial(dot_product_attention, pattern=pattern, arithmetic=arithmetic)
    got = jax.jit(attend)(*operands, segments)
    want = reference(*(np.asarray(x, np.float64) for x in operands), segments, pattern)
    error = np.asarray(got, np.float64) - want
    assert np.sqrt(np.mean(error**2)) < tolerance * want.std()


# What is handed to cuDNN, done by XLA.
CUDNN = functools.partial(cudnn_flash_attention, implementation="xla")


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the kernel for TPUs here."""
    make = functools.partial(splash_attention.make_splash_mha, interpret=True)
    monkeypatch.setattr(splash_attention, "make_splash_mha", make)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("kernel", "heads", "kv_heads", "head_dim", "pattern"),
    [
        (splash_flash_attention, 4, 4, 128, FULL),
        (splash_flash_attention, 4, 2, 64, AttentionPattern(scale=0.3, window=30)),
        (splash_flash_attention, 3, 1, 64, AttentionPattern(scale=1.0, soft_cap=3.0)),
        (CUDNN, 4, 2, 16, FULL),
        (CUDNN, 6, 2, 16, AttentionPattern(scale=0.5, window=30)),
    ],
)
def test_a_kernel_equals_dot_product_in_values_and_gradients(
    kernel: Callable[..., jax.Array],
    heads: int,
    kv_heads: int,
    head_dim: int,
    pattern: AttentionPattern,
) -> None:
    operands = qkv(heads, kv_heads, length=128, head_dim=head_dim, rows=2)
    segments = segments_of(2, 128)
    weights = np.random.default_rng(1).normal(size=operands[0].shape).astype(np.float32)

    def total(attend):
        def weighted(q: jax.Array, k: jax.Array, v: jax.Array):
            out = attend(q, k, v, segments)
            return jnp.sum(out * weights), out

        return jax.jit(jax.value_and_grad(weighted, argnums=(0, 1, 2), has_aux=True))

    with jax.default_matmul_precision("highest"):
        flash = functools.partial(kernel, pattern=pattern)
        dense = functools.partial(dot_product_attention, pattern=pattern)
        (_, got), got_grads = total(lambda *x: flash(*map(jnp.asarray, x)))(*operands)
        (_, want), want_grads = total(lambda *x: dense(*map(jnp.asarray, x)))(*operands)
    np.testing.assert_allclose(got, want, atol=2e-5)
    for one, other in zip(got_grads, want_grads, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-5 * np.abs(other).max())


def test_places_count_from_the_start_of_each_document() -> None:
    segments = jnp.asarray([[1, 1, 1, 2, 2, 0, 0], [3, 4, 4, 4, 4, 4, 4], [0, 0, 5, 5, 0, 0, 0]])
    want = [[0, 1, 2, 0, 1, 0, 1], [0, 0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 0, 1, 2]]
    assert places_in_segments(segments).tolist() == want

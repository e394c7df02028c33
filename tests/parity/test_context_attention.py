"""Attention over split rows equals that over whole rows, and all devices do as much of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from maxtext.ops.attention import Arithmetic, AttentionPattern, dot_product_attention
from maxtext.ops.context_attention import Context, context_attention, rounds
from maxtext.ops.flash_attention import splash_flash_attention
from maxtext.parallel.rows import RowSplit

ROWS, LENGTH = 2, 48
WAYS = (2, 3, 4, 8)
PATTERNS = {
    "full": AttentionPattern(scale=0.5),
    "window": AttentionPattern(scale=0.5, window=9),
    "narrow and capped": AttentionPattern(scale=1.0, window=2, soft_cap=1.5),
}


def context(ways: int, *, ring: bool, balanced: bool = True, **flags: bool) -> Context:
    split = RowSplit(axes=("context",), ways=ways, balanced=balanced)
    return Context(split=split, ring=ring, arithmetic=Arithmetic(**flags))


def operands(dtype: str = "float32"):
    """Queries, keys, values and the segments of packed documents, some of one token."""
    random = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(random.normal(size=(ROWS, LENGTH, heads, 8)), dtype) for heads in (6, 2, 2)
    )
    return q, k, v, jnp.asarray((random.random((ROWS, LENGTH)) < 0.1).cumsum(axis=1), jnp.int32)


def split_attention(how: Context, pattern: AttentionPattern):
    """`context_attention` of whole arrays."""
    op = functools.partial(context_attention, context=how, pattern=pattern)
    return over_devices(op, how.split)


def over_devices(op, split: RowSplit):
    """The op on as many devices as a row is split over, of whole arrays in their own order."""
    mesh = Mesh(jax.devices()[: split.ways], ("context",), axis_types=(AxisType.Auto,))
    parts = P(None, "context")
    run = jax.shard_map(
        op,
        mesh=mesh,
        in_specs=(parts, parts, parts, P()),
        out_specs=parts,
        check_vma=False,
    )
    return lambda q, k, v, segments: run(*map(split.reordered, (q, k, v)), segments)


def value_and_gradients(attend, arrays):
    def total(q, k, v, segments):
        out = attend(q, k, v, segments)
        return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))(*arrays)


@pytest.mark.parametrize(
    ("ways", "ring", "balanced", "pattern"),
    [
        (2, False, True, "full"),
        (4, True, True, "full"),
        (4, False, True, "window"),
        (4, True, True, "window"),
        (3, True, False, "narrow and capped"),
        (8, True, True, "narrow and capped"),
        *(
            pytest.param(ways, ring, balanced, pattern, marks=pytest.mark.slow)
            for ways in (2, 8)
            for ring in (False, True)
            for balanced in (False, True)
            for pattern in PATTERNS
        ),
    ],
)
def test_split_rows_attend_as_whole_rows_do(
    ways: int, ring: bool, balanced: bool, pattern: str
) -> None:
    how, arrays = context(ways, ring=ring, balanced=balanced), operands()

    def whole(q, k, v, segments):
        out = dot_product_attention(q, k, v, segments, pattern=PATTERNS[pattern])
        return how.split.reordered(out)

    with jax.default_matmul_precision("highest"):
        want = value_and_gradients(whole, arrays)
        got = value_and_gradients(split_attention(how, PATTERNS[pattern]), arrays)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the kernel for TPUs here."""
    make = functools.partial(splash_attention.make_splash_mha, interpret=True)
    monkeypatch.setattr(splash_attention, "make_splash_mha", make)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("balanced", "pattern"),
    [
        (True, AttentionPattern(scale=0.2)),
        (False, AttentionPattern(scale=0.2)),
        (True, AttentionPattern(scale=0.2, window=60, soft_cap=2.0)),
    ],
    ids=str,
)
def test_the_kernel_for_tpus_attends_over_split_rows(
    balanced: bool, pattern: AttentionPattern
) -> None:
    split = RowSplit(axes=("context",), ways=2, balanced=balanced)
    random = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(random.normal(size=(1, 512, heads, 64)), jnp.float32) for heads in (2, 1, 1)
    )
    segments = jnp.asarray((random.random((1, 512)) < 0.02).cumsum(axis=1), jnp.int32)

    def whole(q, k, v, segments):
        return split.reordered(dot_product_attention(q, k, v, segments, pattern=pattern))

    kernel = functools.partial(splash_flash_attention, split=split, pattern=pattern)
    with jax.default_matmul_precision("highest"):
        want = value_and_gradients(whole, (q, k, v, segments))
        got = value_and_gradients(over_devices(kernel, split), (q, k, v, segments))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("flags", [{}, {"float32_logits": False}, {"float32_qk_product": True}])
def test_adding_up_parts_costs_no_accuracy_in_bfloat16(flags: dict[str, bool]) -> None:
    pattern, arrays = PATTERNS["full"], operands("bfloat16")
    exact = value_and_gradients(
        functools.partial(dot_product_attention, pattern=pattern),
        [x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for x in arrays],
    )
    how = context(4, ring=True, balanced=False, **flags)
    whole = functools.partial(dot_product_attention, pattern=pattern, arithmetic=how.arithmetic)
    usual = value_and_gradients(whole, arrays)
    got = value_and_gradients(split_attention(how, pattern), arrays)
    for ours, theirs, right in zip(*map(jax.tree.leaves, (got, usual, exact)), strict=True):
        error, bound = (
            np.linalg.norm(np.asarray(x, np.float32) - np.asarray(right, np.float32))
            for x in (ours, theirs)
        )
        assert error < 1.2 * bound + 1e-3 * np.linalg.norm(right)


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("ways", WAYS)
def test_balanced_devices_do_half_of_all_pairs_each(ways: int, ring: bool) -> None:
    held = 2 * ways
    work = list(rounds(context(ways, ring=ring), LENGTH * ways, None))
    pairs = sum(one.held.shape[1] for one in work)
    # Of the pairs of its two chunks and all, 2 * held, it is half and one: two lie on the diagonal.
    assert pairs == held + 1


@pytest.mark.parametrize("window", [None, 1, 2, 9, 40])
@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("ways", WAYS)
def test_each_pair_of_chunks_that_sees_anything_is_run_once(
    ways: int, ring: bool, balanced: bool, window: int | None
) -> None:
    how = context(ways, ring=ring, balanced=balanced)
    place = np.arange(LENGTH * 2)
    seen = place[:, None] >= place
    if window is not None:
        seen &= place[:, None] - place < window
    chunks, size = how.split.held.size, place.size // how.split.held.size
    tiles = seen.reshape(chunks, size, chunks, size).any(axis=(1, 3))
    run = np.zeros((chunks, chunks), int)
    for one in rounds(how, place.size, window):
        for device in range(ways):
            giver = (device - one.shift) % ways
            mine, theirs = how.split.held[device], how.split.held[giver]
            theirs = theirs if ring else how.split.held.reshape(-1)
            assert (mine[one.held[device]] == one.query_chunk[device]).all()
            assert (theirs[one.at_hand[device]] == one.key_chunk[device]).all()
        np.add.at(run, (one.query_chunk, one.key_chunk), 1)
    assert (run[tiles] == 1).all()
    assert run.max() == 1


def test_a_window_shortens_the_ring_and_the_work() -> None:
    ring, gathered = (context(8, ring=ring) for ring in (True, False))
    assert [one.shift for one in rounds(ring, 1024, None)] == list(range(8))
    assert [one.shift for one in rounds(ring, 1024, 65)] == [0, 1, 7]
    (whole,), (near,) = (tuple(rounds(gathered, 1024, window)) for window in (None, 65))
    assert (whole.held.shape[1], near.held.shape[1]) == (17, 4)


@pytest.mark.parametrize("ring", [False, True])
def test_a_ring_never_gathers_keys(ring: bool) -> None:
    def total(*arrays):
        return jnp.sum(split_attention(context(4, ring=ring), PATTERNS["full"])(*arrays))

    text = str(jax.make_jaxpr(jax.grad(total, argnums=(0, 1, 2)))(*operands()))
    assert ("all_gather" in text, "ppermute" in text) == (not ring, ring)

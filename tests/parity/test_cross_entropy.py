import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.ops.cross_entropy import cross_entropy

B, L, D, V = 2, 5, 6, 20
random = np.random.default_rng(0)
HIDDEN = random.normal(size=(B, L, D)).astype(np.float32)
KERNEL = (2 * random.normal(size=(D, V))).astype(np.float32)
TARGETS = random.integers(0, V, (B, L), dtype=np.int32)
TARGETS[0, :2] = (0, V - 1)
WEIGHTS = random.uniform(size=(2, B, L))


def project(hidden: jax.Array, kernel: jax.Array) -> jax.Array:
    return jnp.einsum("bld,dv->blv", hidden, kernel)


def reference(hidden: np.ndarray, kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logits = hidden.astype(np.float64) @ kernel.astype(np.float64)
    top = logits.max(-1)
    normalizer = top + np.log(np.exp(logits - top[..., None]).sum(-1))
    return normalizer - np.take_along_axis(logits, TARGETS[..., None], -1)[..., 0], normalizer


def reference_gradients() -> tuple[np.ndarray, np.ndarray]:
    """Of sum(w0 * nll + w1 * normalizer), by hand."""
    logits = HIDDEN.astype(np.float64) @ KERNEL.astype(np.float64)
    part = np.exp(logits - reference(HIDDEN, KERNEL)[1][..., None])
    dlogits = (WEIGHTS[0] + WEIGHTS[1])[..., None] * part
    dlogits -= WEIGHTS[0][..., None] * np.eye(V)[TARGETS]
    return dlogits @ KERNEL.T.astype(np.float64), np.einsum("bld,blv->dv", HIDDEN, dlogits)


@pytest.mark.parametrize("tiles", [1, 2, 4, V])
def test_values_equal_float64(tiles: int) -> None:
    got = jax.jit(lambda h, k, t: cross_entropy(h, k, t, project=project, num_tiles=tiles))(
        HIDDEN, KERNEL, TARGETS
    )
    for one, want in zip(got, reference(HIDDEN, KERNEL), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-5)
        assert one.dtype == np.float32


@pytest.mark.parametrize("tiles", [1, 2, 4, V])
def test_gradients_equal_float64(tiles: int) -> None:
    def total(hidden: jax.Array, kernel: jax.Array, targets: jax.Array) -> jax.Array:
        nll, normalizer = cross_entropy(hidden, kernel, targets, project=project, num_tiles=tiles)
        return jnp.sum(WEIGHTS[0] * nll + WEIGHTS[1] * normalizer)

    got = jax.jit(jax.grad(total, argnums=(0, 1)))(HIDDEN, KERNEL, TARGETS)
    for one, want in zip(got, reference_gradients(), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-5)


def test_tiles_add_no_rounding_to_gradients_in_bfloat16() -> None:
    hidden = jnp.asarray(random.normal(size=(1, 64, 32)), jnp.bfloat16)
    kernel = jnp.asarray(random.normal(size=(32, 256)) / 8, jnp.bfloat16)
    targets = jnp.asarray(random.integers(0, 256, (1, 64)), jnp.int32)

    def gradient(hidden: jax.Array, kernel: jax.Array, tiles: int) -> np.ndarray:
        def total(hidden: jax.Array) -> jax.Array:
            return cross_entropy(hidden, kernel, targets, project=project, num_tiles=tiles)[0].sum()

        return np.asarray(jax.jit(jax.grad(total))(hidden), np.float64)

    want = gradient(hidden.astype(jnp.float32), kernel.astype(jnp.float32), 1)
    whole, tiled = (np.linalg.norm(gradient(hidden, kernel, n) - want) for n in (1, 32))
    assert tiled < 1.25 * whole


@pytest.mark.parametrize("tiles", [1, 4])
def test_large_logits_do_not_overflow(tiles: int) -> None:
    kernel = 1e3 * KERNEL
    nll, _ = cross_entropy(
        jnp.asarray(HIDDEN),
        jnp.asarray(kernel),
        jnp.asarray(TARGETS),
        project=project,
        num_tiles=tiles,
    )
    np.testing.assert_allclose(nll, reference(HIDDEN, kernel)[0], rtol=1e-5, atol=1e-3)


def arrays_in(tiles: int, *, vocab: int = 4 * 28) -> set[int]:
    """Sizes of all arrays in the compiled gradient, for sizes that no product repeats."""
    shapes = ((3, 5, 11), (11, vocab), (3, 5))
    types = (jnp.float32, jnp.float32, jnp.int32)
    operands = [jax.ShapeDtypeStruct(s, t) for s, t in zip(shapes, types, strict=True)]

    def total(hidden: jax.Array, kernel: jax.Array, targets: jax.Array) -> jax.Array:
        nll, normalizer = cross_entropy(hidden, kernel, targets, project=project, num_tiles=tiles)
        return jnp.sum(nll + normalizer**2)

    text = jax.jit(jax.grad(total, argnums=(0, 1))).lower(*operands).compile().as_text()
    found = re.findall(r"\w+\[([\d,]+)\]", text)
    return {int(np.prod([int(size) for size in dims.split(",")])) for dims in found}


def test_with_tiles_the_logits_of_all_tokens_exist_nowhere() -> None:
    whole, tile = 3 * 5 * 4 * 28, 3 * 5 * 28
    assert whole in arrays_in(1)
    tiled = arrays_in(4)
    assert whole not in tiled
    assert tile in tiled

import jax
import numpy as np
import pytest

from maxtext.optim.momentum import orthogonalized

A, B, C = 3.4445, -4.7750, 2.0315


def by_svd(matrix: np.ndarray) -> np.ndarray:
    """U p(p(p(p(p(S / |S|))))) V^T, in float64."""
    u, s, v = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    s = s / (np.sqrt(np.sum(s**2)) + 1e-7)
    for _ in range(5):
        s = A * s + B * s**3 + C * s**5
    return u * s @ v


@pytest.mark.parametrize("shape", [(5, 5), (3, 8), (8, 3), (1, 6), (6, 1)])
def test_singular_values_go_through_the_polynomial_and_vectors_stay(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    got = np.asarray(orthogonalized(matrix))
    np.testing.assert_allclose(got, by_svd(matrix), rtol=0, atol=2e-5)
    assert np.all(np.abs(np.linalg.svd(got)[1] - 0.95) < 0.3)


def test_each_of_several_matrices_is_taken_by_itself() -> None:
    random = np.random.default_rng(1)
    stacked = (
        random.normal(size=(3, 2, 6, 4)) * 10.0 ** random.integers(-3, 3, (3, 2, 1, 1))
    ).astype(np.float32)
    got = jax.jit(orthogonalized)(stacked)
    for layer in np.ndindex(3, 2):
        np.testing.assert_allclose(got[layer], by_svd(stacked[layer]), rtol=0, atol=2e-5)


def test_no_gradient_gives_no_step() -> None:
    np.testing.assert_array_equal(orthogonalized(np.zeros((4, 3), np.float32)), 0)

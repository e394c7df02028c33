import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.layers.normalizations import CenteredNorm, Norm, norm
from maxtext.ops.normalization import rms_norm


def reference(x: np.ndarray, scale: np.ndarray, eps: float) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * scale


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("shape", [(3, 5, 24), (2, 3, 4, 8)])
def test_rms_norm_equals_float64(size: float, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x = (size * random.normal(size=shape)).astype(np.float32)
    scale = random.uniform(0.5, 1.5, shape[-1:]).astype(np.float32)
    got = jax.jit(lambda x, scale: rms_norm(x, scale, eps=1e-5))(x, scale)
    np.testing.assert_allclose(got, reference(x, scale, 1e-5), rtol=2e-6)


def test_rms_norm_of_bfloat16_is_computed_in_float32() -> None:
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(4, 6, 512)), jnp.bfloat16)
    scale = jnp.asarray(random.uniform(0.5, 1.5, 512), jnp.bfloat16)
    got = jax.jit(lambda x, scale: rms_norm(x, scale, eps=1e-5))(x, scale)
    assert got.dtype == jnp.bfloat16
    want = reference(np.asarray(x, np.float64), np.asarray(scale, np.float64), 1e-5)
    # One rounding, at the end.
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=2.0**-8)


def test_rms_norm_of_zeros_is_zero() -> None:
    np.testing.assert_array_equal(rms_norm(jnp.zeros((1, 1, 8)), jnp.ones(8), eps=1e-5), 0)


def test_a_centered_norm_adds_one_to_its_scale_in_float32() -> None:
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(4, 6, 64)), jnp.bfloat16)
    # In bfloat16, 1 and any of these would be 1.
    scale = jnp.asarray(random.uniform(-(2.0**-10), 2.0**-10, 64), jnp.bfloat16)
    got = norm(CenteredNorm(scale=scale), x.astype(jnp.float32), eps=1e-6)
    want = reference(np.asarray(x, np.float64), 1 + np.asarray(scale, np.float64), 1e-6)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    plain = norm(Norm(scale=scale.astype(jnp.float32) + 1), x.astype(jnp.float32), eps=1e-6)
    np.testing.assert_array_equal(got, plain)

"""Rotary position embeddings."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from maxtext.types import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Parameters of `scale_llama3`.

    Attributes:
        factor: What the longest wavelengths are stretched by.
        low_freq_factor: Wavelengths over original_length / this are stretched by all of `factor`.
        high_freq_factor: Wavelengths under original_length / this are not stretched.
        original_length: Tokens of context before the stretch.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int


def inverse_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """The angle of each channel pair per position, in radians, float64.

    Source: Su et al. 2021, arXiv:2104.09864, equation 15.
    """
    return theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)


def scale_llama3(frequencies: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    """Frequencies with the long wavelengths stretched and the middle ones blended.

    Source: transformers 4.43, modeling_rope_utils.py, _compute_llama3_parameters.
    """
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((scaling.original_length / wavelengths - low) / (high - low), 0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def rotation(
    positions: Int[Array, "B L"], frequencies: np.ndarray
) -> tuple[Float[Array, "B L half"], Float[Array, "B L half"]]:
    """Cosine and sine of each channel pair's angle at each position, in float32."""
    angles = positions[..., None].astype(jnp.float32) * frequencies.astype(np.float32)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "B L H N"],
    cos_sin: tuple[Float[Array, "B L half"], Float[Array, "B L half"]],
) -> Float[Array, "B L H N"]:
    """`x` with channel i rotated against channel i + N/2, computed in float32.

    The pairing is that of Hugging Face's checkpoints (halves, not neighbours).
    """
    cos, sin = (part[:, :, None, :] for part in cos_sin)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jax.lax.convert_element_type(rotated, x.dtype)

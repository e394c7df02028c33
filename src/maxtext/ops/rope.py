"""Rotary position embeddings."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from maxtext.types import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Every wavelength stretched by `factor`.

    Source: Chen et al. 2023, arXiv:2306.15595, section 3.2.
    """

    factor: float


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """The long wavelengths stretched, the middle ones blended.

    Attributes:
        factor: What the longest wavelengths are stretched by.
        low_freq_factor: Wavelengths over original_length / this are stretched by all of `factor`.
        high_freq_factor: Wavelengths under original_length / this are not stretched.
        original_length: Tokens of context before the stretch.

    Source: transformers 4.43, modeling_rope_utils.py, _compute_llama3_parameters.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int


@dataclasses.dataclass(frozen=True)
class YarnScaling:
    """The long wavelengths stretched, those between two channels blended.

    Attributes:
        factor: What the longest wavelengths are stretched by.
        beta_fast: Channels that turn more often than this in `original_length` are not stretched.
        beta_slow: Channels that turn less often than this are stretched by all of `factor`.
        original_length: Tokens of context before the stretch.
        truncate: Round both bounds outwards to whole channels.
        mscale: Cosines and sines are multiplied by 1 + 0.1 mscale ln(factor); 0: by 1.

    Source: Peng et al. 2023, arXiv:2309.00071, section 3; transformers 5.19,
        modeling_rope_utils.py, _compute_yarn_parameters.
    """

    factor: float
    beta_fast: float
    beta_slow: float
    original_length: int
    truncate: bool
    mscale: float


@dataclasses.dataclass(frozen=True)
class Rope:
    """One kind of rotary embedding: hashable, as layers are told apart by it.

    Attributes:
        head_dim: Channels of a head, of which two make a pair.
        theta: Base of the wavelengths.
        scaling: How the context was made longer after training.
    """

    head_dim: int
    theta: float
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None = None

    def frequencies(self) -> np.ndarray:
        """The angle of each channel pair per position, in radians, float64."""
        plain = inverse_frequencies(self.head_dim, self.theta)
        match self.scaling:
            case None:
                return plain
            case LinearScaling(factor):
                return plain / factor
            case Llama3Scaling():
                kept = _kept_by_llama3(plain, self.scaling)
            case YarnScaling():
                kept = _kept_by_yarn(self, self.scaling)
        return kept * plain + (1 - kept) * plain / self.scaling.factor

    def rotation(
        self, positions: Int[Array, "B L"]
    ) -> tuple[Float[Array, "B L half"], Float[Array, "B L half"]]:
        """Cosine and sine of each channel pair's angle at each position, in float32."""
        angles = positions[..., None].astype(jnp.float32) * self.frequencies().astype(np.float32)
        if not isinstance(self.scaling, YarnScaling):
            return jnp.cos(angles), jnp.sin(angles)
        stretch = 1 + 0.1 * self.scaling.mscale * math.log(self.scaling.factor)
        return jnp.cos(angles) * stretch, jnp.sin(angles) * stretch


def inverse_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """The unscaled angle of each channel pair per position, in radians, float64.

    Source: Su et al. 2021, arXiv:2104.09864, equation 15.
    """
    return theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)


def _kept_by_llama3(frequencies: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    """The part of each frequency that is not stretched."""
    turns = scaling.original_length * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return np.clip((turns - low) / (high - low), 0.0, 1.0)


def _kept_by_yarn(rope: Rope, scaling: YarnScaling) -> np.ndarray:
    """The part of each frequency that is not stretched."""

    def channel(turns: float) -> float:
        """The channel pair that turns so often in the original length."""
        wavelength = scaling.original_length / turns
        return rope.head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = channel(scaling.beta_fast), channel(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.head_dim - 1)
    width = high - low or 0.001
    return 1 - np.clip((np.arange(rope.head_dim // 2) - low) / width, 0.0, 1.0)


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

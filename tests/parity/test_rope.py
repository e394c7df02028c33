import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.config.load import load
from maxtext.models.layer_kinds import rope as rope_of
from maxtext.ops.rope import Llama3Scaling, Rope, YarnScaling, inverse_frequencies, rotate

# Settings, frequencies and factors that make_fixtures.py took from transformers, in float32.
STORED = json.loads((Path(__file__).parent / "fixtures" / "rope.json").read_text())


def scaled(head_dim: int, theta: float, original_length: int) -> np.ndarray:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, original_length)
    return Rope(head_dim, theta, scaling).frequencies()


# head_dim, theta, original length, frequencies before and after scaling; all digits hold.
TABLE = [
    (8, 1e4, 64, "1 0.1 0.01 0.001", "1 0.013042256 0.00125 0.000125"),
    (
        8,
        5e5,
        8192,
        "1 0.037606031 0.0014142136 5.3182959e-05",
        "1 0.037606031 0.00052484616 6.6478699e-06",
    ),
    (
        16,
        1e4,
        64,
        "1 0.31622777 0.1 0.031622777 0.01 0.0031622777 0.001 0.00031622777",
        "1 0.2443846 0.013042256 0.0039528471 0.00125 0.00039528471 0.000125 3.9528471e-05",
    ),
]


@pytest.mark.parametrize(("head_dim", "theta", "length", "before", "after"), TABLE)
def test_frequencies_equal_the_closed_form_to_all_digits(
    head_dim: int, theta: float, length: int, before: str, after: str
) -> None:
    plain = Rope(head_dim, theta).frequencies()
    assert [f"{value:.8g}" for value in plain] == before.split()
    assert [f"{value:.8g}" for value in scaled(head_dim, theta, length)] == after.split()


@pytest.mark.parametrize(("head_dim", "want"), [(64, (15, 3, 14)), (128, (29, 6, 29))])
def test_llama3_keeps_blends_and_divides_as_many_channels_as_released(
    head_dim: int, want: tuple[int, int, int]
) -> None:
    plain = inverse_frequencies(head_dim, 5e5)
    ratio = scaled(head_dim, 5e5, 8192) / plain
    kept, divided = np.sum(ratio == 1), np.sum(ratio == 1 / 8)
    assert (kept, len(ratio) - kept - divided, divided) == want


def test_the_config_chooses_the_frequencies() -> None:
    argv = ["head_dim=64", "rope_max_timescale=5e5"]
    plain, llama3 = (
        rope_of(load([*argv, f"rope_type={kind}"], {}).config.model).frequencies()
        for kind in ("default", "llama3.1")
    )
    np.testing.assert_array_equal(plain, inverse_frequencies(64, 5e5))
    np.testing.assert_array_equal(llama3, scaled(64, 5e5, 8192))


@pytest.mark.parametrize("stored", STORED, ids=[one["settings"]["rope_type"] for one in STORED])
def test_the_keys_give_what_transformers_gives(stored: dict[str, Any]) -> None:
    settings = [f"{key}={str(value).lower()}" for key, value in stored["settings"].items()]
    rope = rope_of(load(settings, {}).config.model)
    np.testing.assert_allclose(rope.frequencies(), stored["frequencies"], rtol=3e-6)
    cos, sin = rope.rotation(jnp.asarray([[0, 3]]))
    np.testing.assert_allclose(cos[0, 0], stored["factor"], rtol=1e-6)
    angle = 3 * stored["frequencies"][0]
    np.testing.assert_allclose(sin[0, 1, 0], stored["factor"] * np.sin(angle), rtol=1e-5)


def test_yarn_keeps_blends_and_divides_by_the_turns_in_the_original_length() -> None:
    # Channel 2i of 64 turns 4096 / (2 pi 10000^(2i/64)) times in 4096 tokens: 32 times at pair
    # 10.47, once at 22.51; rounded outwards 10 and 23.
    scaling = YarnScaling(4.0, 32.0, 1.0, 4096, truncate=True, mscale=1.0)
    ratio = Rope(64, 1e4, scaling).frequencies() / inverse_frequencies(64, 1e4)
    assert np.all(ratio[:11] == 1)
    np.testing.assert_allclose(ratio[23:], 1 / 4)
    np.testing.assert_allclose(ratio[11:23], 1 - 0.75 * (np.arange(11, 23) - 10) / 13)


def test_cosines_hold_at_large_positions() -> None:
    positions = jnp.asarray([[256, 257, 1000, 1001, 4095, 4096]])
    cos, _ = jax.jit(lambda p: Rope(8, 1e4).rotation(p))(positions)
    assert [f"{value:.4f}" for value in cos[0, :, 0]] == [
        "-0.0398",
        "0.8193",
        "0.5624",
        "-0.3919",
        "-0.0660",
        "0.8040",
    ]


def test_cosines_and_sines_equal_float64_at_every_position() -> None:
    frequencies = inverse_frequencies(128, 5e5)
    positions = np.arange(8192, dtype=np.int32)[None]
    cos, sin = jax.jit(Rope(128, 5e5).rotation)(positions)
    angles = positions[..., None].astype(np.float64) * frequencies
    # A float32 angle of 8192 is good to 2**-11.
    np.testing.assert_allclose(cos, np.cos(angles), atol=2.0**-11)
    np.testing.assert_allclose(sin, np.sin(angles), atol=2.0**-11)


def test_channels_are_paired_by_halves() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 3, 8)).astype(np.float32)
    positions = np.asarray([[0, 1, 2, 0, 1], [7, 100, 3, 2, 1]], np.int32)
    frequencies = inverse_frequencies(8, 1e4)
    got = jax.jit(lambda x, p: rotate(x, Rope(8, 1e4).rotation(p)))(x, positions)
    turn = np.exp(1j * positions[..., None].astype(np.float64) * frequencies)[:, :, None]
    want = (x[..., :4] + 1j * x[..., 4:]) * turn
    np.testing.assert_allclose(got, np.concatenate([want.real, want.imag], -1), atol=1e-5)


def test_scores_depend_on_the_distance_alone() -> None:
    random = np.random.default_rng(0)
    q, k = random.normal(size=(2, 1, 1, 1, 16)).astype(np.float32)

    def score(q_position: int, k_position: int) -> float:
        places = (jnp.asarray([[place]]) for place in (q_position, k_position))
        turned = [
            rotate(jnp.asarray(x), Rope(16, 1e4).rotation(p))
            for x, p in zip((q, k), places, strict=True)
        ]
        return float(jnp.vdot(*turned))

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
    assert abs(score(9, 4) - score(9, 5)) > 1e-3


def test_the_type_stays() -> None:
    x = jnp.ones((1, 2, 1, 4), jnp.bfloat16)
    turned = rotate(x, Rope(4, 1e4).rotation(jnp.asarray([[0, 5]])))
    assert turned.dtype == jnp.bfloat16

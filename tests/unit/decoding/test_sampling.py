import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.decoding.requests import Sampling
from maxtext.decoding.sampling import Mode, Settings, choose

LOGITS = np.array([0.0, 3.0, 2.0, 1.0, -1.0, 9.0, 9.0], np.float32)  # the last two are no tokens
VOCAB, DRAWS = 5, 2000


def settings(rows: list[Sampling], *, places=None, seen=None) -> Settings:
    def each(name: str) -> jax.Array:
        return jnp.asarray([getattr(one, name) for one in rows])

    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    return Settings(
        **{name: each(name) for name in names},
        places=jnp.arange(len(rows)) if places is None else jnp.asarray(places),
        seen=seen,
    )


_choose = jax.jit(choose, static_argnames=("mode", "vocab_size"))


def tokens(rows: list[Sampling], logits=LOGITS, *, places=None, seen=None) -> np.ndarray:
    logits = jnp.broadcast_to(logits, (len(rows), logits.shape[-1]))
    given = settings(rows, places=places, seen=seen)
    chosen = _choose(logits, given, mode=Mode(True, seen is not None), vocab_size=VOCAB)
    return np.asarray(chosen.tokens)


def drawn(**how) -> np.ndarray:
    """How often each token is drawn, as a part of all draws."""
    return np.bincount(tokens([Sampling(**how)] * DRAWS), minlength=7) / DRAWS


def probabilities(kept: list[int], temperature: float = 1.0) -> np.ndarray:
    weights = np.zeros(7)
    weights[kept] = np.exp(LOGITS[kept] / temperature)
    return weights / weights.sum()


def test_greedy_takes_the_likeliest_token_and_never_a_padded_row() -> None:
    np.testing.assert_array_equal(drawn(), np.eye(7)[1])
    equal = np.array([1.0, 2.0, 2.0, 0.0, 2.0, 9.0, 9.0], np.float32)
    assert tokens([Sampling()], equal) == [1]
    assert tokens([Sampling()], np.full(7, np.nan, np.float32)) < VOCAB


@pytest.mark.parametrize(
    ("how", "want"),
    [
        ({"temperature": 1.0}, probabilities([0, 1, 2, 3, 4])),
        ({"temperature": 0.5}, probabilities([0, 1, 2, 3, 4], 0.5)),
        ({"temperature": 1.0, "top_k": 2}, probabilities([1, 2])),
        ({"temperature": 1.0, "top_k": 50}, probabilities([0, 1, 2, 3, 4])),
        # 0.64 and 0.23 of the probability: the token that crosses the bound is kept.
        ({"temperature": 1.0, "top_p": 0.7}, probabilities([1, 2])),
        ({"temperature": 1.0, "top_p": 0.6}, probabilities([1])),
        ({"temperature": 1.0, "top_p": 1e-6}, probabilities([1])),
        # Of the two that top-k leaves, the first has 0.73.
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.72}, probabilities([1])),
        # exp(-1) = 0.368 and exp(-2) = 0.135 of the likeliest; at temperature 2 their roots.
        ({"temperature": 1.0, "min_p": 0.36}, probabilities([1, 2])),
        ({"temperature": 2.0, "min_p": 0.36}, probabilities([1, 2, 3], 2.0)),
    ],
)
def test_draws_follow_the_probabilities_of_the_kept_tokens(how, want) -> None:
    found = drawn(**how)
    np.testing.assert_allclose(found, want, atol=0.04)
    np.testing.assert_array_equal(found[want == 0], 0)


def test_bounds_are_exact_for_all_kinds_of_numbers() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(40, VOCAB)).astype(np.float32) * 10.0 ** random.integers(
        -6, 4, (40, 1)
    )
    for count in (1, 2, 3):
        likeliest = np.argsort(-logits, axis=-1)[:, :count]
        for seed in range(8):
            rows = [Sampling(temperature=1e4, top_k=count, seed=seed)] * 40
            for token, allowed in zip(tokens(rows, logits), likeliest, strict=True):
                assert token in allowed


def test_a_draw_depends_on_seed_and_place_alone() -> None:
    rows = [Sampling(temperature=3.0, seed=seed) for seed in range(6)]
    places = [5, 9, 2, 7, 1, 30]
    found = tokens(rows, places=places)
    np.testing.assert_array_equal(tokens(rows[::-1], places=places[::-1])[::-1], found)
    alone = [tokens([one], places=[place])[0] for one, place in zip(rows, places, strict=True)]
    np.testing.assert_array_equal(alone, found)


def test_tokens_that_occurred_are_penalized_in_their_own_row_alone() -> None:
    seen = jnp.zeros((2, 7), bool).at[0, jnp.array([1, 4])].set(True)
    rows = [Sampling(repetition_penalty=2.0)] * 2
    np.testing.assert_array_equal(tokens(rows, seen=seen), [2, 1])
    # A negative logit grows more negative: -1 becomes -2, below -1.5.
    logits = np.array([-1.5, -9, -9, -9, -1.0, 0, 0], np.float32)
    np.testing.assert_array_equal(tokens(rows, logits, seen=seen), [0, 4])


def test_log_probabilities_are_the_models() -> None:
    rows = [Sampling(temperature=0.1, top_k=1)]
    chosen = _choose(
        jnp.asarray(LOGITS)[None], settings(rows), mode=Mode(True, logprobs=True), vocab_size=VOCAB
    )
    want = np.log(probabilities([0, 1, 2, 3, 4])[:VOCAB])
    assert chosen.logprobs is not None
    np.testing.assert_array_equal(chosen.logprobs.top_tokens[0], [1, 2, 3, 0, 4])
    np.testing.assert_allclose(chosen.logprobs.top[0], np.sort(want)[::-1], rtol=1e-5)
    np.testing.assert_allclose(chosen.logprobs.chosen, [want[1]], rtol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("inf")},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"min_p": 1.1},
        {"repetition_penalty": 0.0},
        {"seed": 2**31},
        {"stop": ("",)},
        {"logprobs": 21},
    ],
)
def test_settings_out_of_range_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}=.* must be"):
        Sampling(**wrong)

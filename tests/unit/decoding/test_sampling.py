import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.config.load import load
from maxtext.decoding.sampling import next_token

LOGITS = jnp.asarray([0.0, 3.0, 2.0, 1.0, -1.0, 9.0, 9.0])  # the last two are no tokens
VOCAB = 5


def drawn(*argv: str, draws: int = 2000) -> np.ndarray:
    """How often each token is drawn, as a part of all draws."""
    config = load(argv, {}).config.decode
    keys = jax.random.split(jax.random.key(0), draws)
    one = jax.vmap(lambda key: next_token(LOGITS, key, config=config, vocab_size=VOCAB))
    return np.bincount(np.asarray(jax.jit(one)(keys)), minlength=7) / draws


def probabilities(kept: list[int], temperature: float = 1.0) -> np.ndarray:
    weights = np.zeros(7)
    weights[kept] = np.exp(np.asarray(LOGITS)[kept] / temperature)
    return weights / weights.sum()


def test_greedy_takes_the_likeliest_token_and_never_a_padded_row() -> None:
    np.testing.assert_array_equal(drawn(), np.eye(7)[1])


@pytest.mark.parametrize(
    ("argv", "want"),
    [
        (("decode_sampling_strategy=weighted",), probabilities([0, 1, 2, 3, 4])),
        (
            ("decode_sampling_strategy=weighted", "decode_sampling_temperature=0.5"),
            probabilities([0, 1, 2, 3, 4], 0.5),
        ),
        (("decode_sampling_strategy=topk", "decode_sampling_top_k=2"), probabilities([1, 2])),
        # 0.64 and 0.23 of the probability: the token that crosses the bound is kept.
        (
            ("decode_sampling_strategy=nucleus", "decode_sampling_nucleus_p=0.7"),
            probabilities([1, 2]),
        ),
        (
            ("decode_sampling_strategy=nucleus", "decode_sampling_nucleus_p=0.6"),
            probabilities([1]),
        ),
    ],
)
def test_draws_follow_the_probabilities_of_the_kept_tokens(argv, want) -> None:
    np.testing.assert_allclose(drawn(*argv), want, atol=0.04)
    np.testing.assert_array_equal(drawn(*argv)[want == 0], 0)

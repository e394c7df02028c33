import pytest

from maxtext.config.errors import ConfigError
from maxtext.optim.trainable import trainable_mask
from maxtext.parallel.params import named_leaves
from tiny import tiny_setup


def trained(*patterns: str) -> set[str]:
    mask = trainable_mask(patterns, tiny_setup().specs)
    return {name for name, one in named_leaves(mask).items() if one}


def test_without_a_pattern_all_weights_are_trained() -> None:
    assert trained() == set(named_leaves(tiny_setup().specs))


def test_a_pattern_is_searched_in_the_whole_name() -> None:
    assert trained("^token_") == {"token_embedder/embedding"}
    assert trained("query|value/kernel$", "decoder_norm") == {
        "decoder/layers/self_attention/query/kernel",
        "decoder/layers/self_attention/value/kernel",
        "decoder/decoder_norm/scale",
    }
    assert trained("^(?!.*mlp)") == {
        name for name in named_leaves(tiny_setup().specs) if "mlp" not in name
    }


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("self_atention/.*", "did you mean decoder/layers/self_attention/query/kernel, "),
        ("mlp/wi_0/kernl", "did you mean decoder/layers/mlp/wi_0/kernel?"),
        ("^token_embeder", "did you mean token_embedder/embedding?"),
        ("[0-9]{7}", "there are token_embedder/embedding, decoder/layers/"),
    ],
)
def test_a_pattern_that_is_found_nowhere_is_an_error_with_the_nearest(
    pattern: str, near: str
) -> None:
    with pytest.raises(ConfigError, match="is found in no weight's name; ") as error:
        tiny_setup(f"trainable_parameters_mask=['{pattern}', kernel]")
    assert near in str(error.value)

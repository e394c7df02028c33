from collections.abc import Callable, Iterator

import pytest

from maxtext.config.errors import ConfigError
from maxtext.decoding.engine import Engine
from maxtext.decoding.output import results, text
from maxtext.decoding.prompts import Prompt
from tiny_engine import request, tiny_engine


@pytest.mark.parametrize(
    "printed",
    [
        lambda engine, long, fits: text(engine, long, echo=False),
        lambda engine, long, fits: results(engine, [fits, long]),
    ],
)
def test_a_prompt_that_does_not_fit_the_cache_is_told_by_its_place(
    printed: Callable[[Engine, Prompt, Prompt], Iterator[str]],
) -> None:
    engine, _ = tiny_engine("num_pages=2")
    long = Prompt("p.txt:2", "", request(range(6), max_new_tokens=3))
    fits = Prompt("p.txt:1", "", request(range(6), max_new_tokens=2))
    says = "p.txt:2: 6 tokens .* max_new_tokens=3 exceed the 8 that the pages of the cache hold"
    with pytest.raises(ConfigError, match=says):
        next(printed(engine, long, fits))

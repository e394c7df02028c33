"""How many pages there can be."""

import pytest

from maxtext.config.errors import ConfigError
from tiny_engine import tiny_engine

DATA2 = ("ici_data_parallelism=2", "ici_fsdp_parallelism=1")


@pytest.mark.parametrize(
    ("argv", "devices", "says"),
    [
        (("num_pages=2000000000",), 1, "pages are what fits into kv_cache_memory_fraction=0.5"),
        (("num_pages=1", *DATA2), 2, "each of 2 devices that split requests needs one"),
    ],
)
def test_pages_that_cannot_be_are_the_fault_of_the_key_that_asks_for_them(
    argv: tuple[str, ...], devices: int, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        tiny_engine(*argv, "base_num_decoder_layers=1", devices=devices)
    (problem,) = caught.value.problems
    assert (problem.key, problem.value) == ("num_pages", argv[0].removeprefix("num_pages="))
    assert "num_pages=-1" in problem.hint

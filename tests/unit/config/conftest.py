"""Ways to load a config and to read what is wrong with it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from maxtext.config.errors import ConfigError, Problem
from maxtext.config.load import load


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def problems() -> Callable[..., tuple[Problem, ...]]:
    """All problems of a command line."""

    def found(
        *argv: str, environ: Mapping[str, str] | None = None, from_checkpoint: bool = False
    ) -> tuple[Problem, ...]:
        with pytest.raises(ConfigError) as caught:
            load(argv, environ or {}, model_from_checkpoint=from_checkpoint)
        return caught.value.problems

    return found

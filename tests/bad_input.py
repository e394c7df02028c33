"""One bad input, and what every program has to answer to it; tables of them in integration/."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest


@dataclasses.dataclass(frozen=True)
class Bad:
    """One bad input.

    Attributes:
        argv: The command line, split at spaces.
        says: Parts of its one error.
        files: Content of files by name, made before.
        environ: Variables set before.
    """

    argv: str
    says: tuple[str, ...]
    files: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


def make(files: Mapping[str, str], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def assert_one_clear_error(err: str, says: tuple[str, ...]) -> None:
    assert err.startswith("error: ")
    assert err.count("error: ") == 1
    assert err.count("\n") <= 2
    assert "Traceback" not in err
    assert [text for text in says if text not in err] == []


def assert_refused(
    bad: Bad,
    main: Callable[[Sequence[str]], int],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make(bad.files, folder)
    before = sorted(folder.rglob("*"))
    assert main(bad.argv.split(" ")) == 2
    out, err = capsys.readouterr()
    assert not out
    assert_one_clear_error(err, bad.says)
    assert sorted(folder.rglob("*")) == before

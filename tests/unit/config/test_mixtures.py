"""Weights of files: what is written, and what it means."""

from fractions import Fraction
from pathlib import Path

import pytest

from maxtext.config.mixtures import read_mixture, shares, split_parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a*.jsonl", [("", "a*.jsonl", 1)]),
        ("a.jsonl, b.jsonl", [("", "a.jsonl, b.jsonl", 1)]),
        (
            "a*.jsonl,0.3;b*.jsonl,0.7",
            [("a*.jsonl", "a*.jsonl", Fraction(3, 10)), ("b*.jsonl", "b*.jsonl", Fraction(7, 10))],
        ),
        (
            "/x/web/*.jsonl, 1 ; /x/books/*.jsonl,/y/more.txt, 1/3;",
            [
                ("web/*.jsonl", "/x/web/*.jsonl", 1),
                ("books/*.jsonl", "/x/books/*.jsonl,/y/more.txt", Fraction(1, 3)),
            ],
        ),
        ("a,5", [("a", "a", 5)]),
    ],
)
def test_weights_follow_their_files_and_names_are_short(text: str, parts: list[object]) -> None:
    assert [(one.name, one.patterns, one.weight) for one in split_parts(text)] == parts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a;b,1", "'a' has no weight"),
        ("a,b;c,1", "'a,b' has no weight"),
        ("a,-1;b,1", "weight of 'a' must be above 0"),
        ("a,0;b,1", "weight of 'a' must be above 0"),
        ("a,nan;b,1", "'a,nan' has no weight"),
        (",1;b,2", "has no files before it"),
        (";", "names no files"),
        ("a,1;a,2", "'a' is given twice"),
        ("a,0.1234567;b,1", "exact only every 11234567 documents"),
    ],
)
def test_weights_that_are_none_are_named(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        split_parts(text)


def test_a_file_of_weights_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mix.yml"
    file.write_text("web:\n  path: a*.jsonl\n  weight: 0.30\nbooks: {weight: 7e-1, path: [b, c]}\n")
    parts = read_mixture(file)
    assert [(one.name, one.patterns) for one in parts] == [("web", "a*.jsonl"), ("books", "b,c")]
    assert shares([one.weight for one in parts]) == (3, 7)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("web: a.jsonl\n", "mix.yml:1: web must have a path and a weight"),
        ("web:\n  path: a\n", "mix.yml:1: web must have a path and a weight, not path"),
        ("web: {path: a, weight: 1, columns: b}", "not path, weight, columns"),
        ("web: {path: a, weight: much}", "weight that is a number"),
        ("a: {path: a, weight: 1}\nb: {path: b, weight: -1}", "mix.yml:2: the weight of b must be"),
        ("a: {path: a, weight: 1}\na: {path: b, weight: 1}", "mix.yml:2.*twice"),
        ("- a\n", "must be a mapping"),
        ("", "holds no keys"),
        ("a: b: c\n", "mix.yml:1.*not valid YAML"),
    ],
)
def test_a_file_of_weights_that_is_none_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "mix.yml"
    file.write_text(text)
    with pytest.raises(ValueError, match=says):
        read_mixture(file)

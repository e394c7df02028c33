"""What a problem looks like to the user."""

import pytest

from maxtext.config.errors import ConfigError, Origin, Problem, nearest

FILE = Origin("file", "run.yml:3")


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (
            Problem("steps", "must be more", value="0", origin=FILE, hint="use 1"),
            "steps=0 (run.yml:3): must be more; use 1",
        ),
        (Problem("steps", "must be more"), "steps: must be more"),
        (Problem("steps", "must be more", value=""), "steps='': must be more"),
        (Problem("", "is empty", origin=FILE), "run.yml:3: is empty"),
        (Problem("", "is gone", value="run.yml", origin=FILE), "run.yml (run.yml:3): is gone"),
        (Problem("", "nothing known"), "nothing known"),
        (
            Problem("a", "clash", value="1", origin=FILE, beside=("b=2 (x)", "c=3 (y)")),
            "a=1 (run.yml:3) with b=2 (x) with c=3 (y): clash",
        ),
        (Problem("prompt", "is odd", value="a\nb"), "prompt=a\\nb: is odd"),
        (Problem("a", "x" * 60, hint="y" * 60), f"a: {'x' * 60}\n  {'y' * 60}"),
    ],
)
def test_a_problem_is_a_line_or_two(problem: Problem, text: str) -> None:
    assert str(problem) == text


def test_a_long_value_is_cut() -> None:
    text = str(Problem("prompt", "is long", value="a" * 1000))
    assert text == f"prompt={'a' * 57}...: is long"


def test_an_error_holds_all_problems() -> None:
    problems = (Problem("a", "one"), Problem("b", "two"))
    error = ConfigError(problems)
    assert error.problems == problems
    assert str(error) == "a: one\nb: two"
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("name", "found"),
    [("STEPS", "steps"), ("run-name", "run_name"), ("stpes", "steps"), ("zzz", None)],
)
def test_the_nearest_name_is_found(name: str, found: str | None) -> None:
    assert nearest(name, ["steps", "run_name"]) == found

"""What a program prints, returns and lets through."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from maxtext import train
from maxtext.config.cli import run_main
from maxtext.config.errors import ConfigError, Problem
from maxtext.config.keys import keys, sections
from maxtext.config.load import Loaded


def raising(error: BaseException) -> Callable[[Loaded], None]:
    def run(loaded: Loaded) -> None:
        raise error

    return run


def must_not_run(loaded: Loaded) -> None:
    raise AssertionError("the program ran")


def test_the_program_gets_the_config() -> None:
    got: list[Loaded] = []
    code = run_main(["steps=7"], got.append, program="maxtext.train", environ={})
    assert code == 0
    assert got[0].config.training.steps == 7


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["steps=7", "--help"], ["steps=x", "--help"]])
def test_help_shows_every_key_of_every_section(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(argv, must_not_run, program="maxtext.train", environ={}) == 0
    out, err = capsys.readouterr()
    assert not err
    assert out.startswith("usage: python -m maxtext.train [FILE.yml] [KEY=VALUE")
    assert all(f"\n  {name}=" in out for name in keys())
    assert all(f"\n{section}: " in out for section in sections())
    assert max(map(len, out.splitlines())) <= 140


@pytest.mark.parametrize(
    "argv", [["--help", "rope"], ["--help=rope"], ["-h", "ROPE"], ["--help", "rope=5"]]
)
def test_help_about_a_word_shows_what_has_to_do_with_it(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(argv, must_not_run, program="maxtext.train", environ={}) == 0
    out, _ = capsys.readouterr()
    assert "  rope_max_timescale=10000.0    (a number, above 0)\n      RoPE base (theta).\n" in out
    assert "  use_qk_norm=" in out
    assert "  steps=" not in out


def test_help_about_a_section_shows_it_whole(capsys: pytest.CaptureFixture[str]) -> None:
    run_main(["--help", "optimizer"], must_not_run, program="maxtext.train", environ={})
    out, _ = capsys.readouterr()
    assert all(f"  {key.name}=" in out for key in keys().values() if key.section == "optimizer")


def test_help_about_an_unknown_word_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(["--help", "stepz"], must_not_run, program="maxtext.train", environ={}) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err == "error: --help=stepz: no key has to do with it; did you mean steps?\n"


def test_print_config_shows_each_value_and_where_it_came_from(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "run.yml").write_text("log_period: 2\nlogical_axis_rules: {mlp: []}\n")
    argv = ["run.yml", "print_config=true", "prompt=a\nb", "model_name=qwen3-8b"]
    environ = {"M_STEPS": "3"}
    assert run_main(argv, must_not_run, program="maxtext.train", environ=environ) == 0
    out, err = capsys.readouterr()
    assert not err
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert rows["log_period"].split() == ["2", "run.yml:1"]
    assert rows["steps"].split() == ["3", "environment", "M_STEPS"]
    assert rows["prompt"].split() == ['"a\\nb"', "command", "line"]
    assert rows["decoder_block"].split() == ["qwen3", "configs/models/qwen3-8b.yml:4"]
    assert rows["logical_axis_rules.mlp"].split() == ["[]", "run.yml:2"]
    assert set(keys()) - {"logical_axis_rules"} <= set(rows)


def test_all_problems_go_to_stderr_and_the_code_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["steps=0", "packing=maybe"]
    assert run_main(argv, must_not_run, program="maxtext.train", environ={}) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines() == [
        "error: packing=maybe (command line): must be true or false",
        "error: steps=0 (command line): must be a whole number, at least 1",
    ]


def test_a_problem_found_in_the_run_is_shown_with_its_origin(
    capsys: pytest.CaptureFixture[str],
) -> None:
    problem = Problem("steps", "does not fit", value="7", hint="use 8")
    run = raising(ConfigError([problem]))
    assert run_main(["steps=7"], run, program="maxtext.train", environ={}) == 2
    _, err = capsys.readouterr()
    assert err == "error: steps=7 (command line): does not fit; use 8\n"


def test_an_error_with_a_text_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    run = raising(ConfigError("5 devices do not fit"))
    assert run_main([], run, program="maxtext.train", environ={}) == 2
    assert capsys.readouterr().err == "error: 5 devices do not fit\n"


@pytest.mark.parametrize("error", [ValueError("ours"), RuntimeError("x"), SystemExit(1)])
def test_other_errors_pass_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        run_main([], raising(error), program="maxtext.train", environ={})
    assert caught.value is error


def test_ctrl_c_ends_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    run = raising(KeyboardInterrupt())
    assert run_main([], run, program="maxtext.train", environ={}) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    "program",
    ["checkpoint", "convert", "decode", "plan", "plot", "serve", "train", "vllm_decode"],
)
def test_ctrl_c_shows_no_traceback_while_a_program_is_imported(
    program: str, tmp_path: Path
) -> None:
    # What all of them import, and Python itself does not.
    stub = "import os, signal\ntry: os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException: pass"
    (tmp_path / "difflib.py").write_text(stub)
    done = subprocess.run(
        [sys.executable, "-m", f"maxtext.{program}"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "interrupted\n")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m maxtext.train --help | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: ")
    assert not done.stderr


def test_help_and_errors_do_not_import_jax() -> None:
    program = (
        "import sys; from maxtext.train import main; main(['--help']); main(['steps=0']); "
        "sys.exit(any(name in sys.modules for name in ('jax', 'numpy', 'orbax', 'grain')))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_train_reads_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("M_STEPS", "0")
    assert "M_STEPS" in os.environ
    assert train.main([]) == 2
    assert "steps=0 (environment M_STEPS)" in capsys.readouterr().err

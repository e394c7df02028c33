"""Paths are checked before anything starts, and nothing is written by the check."""

from collections.abc import Callable
from pathlib import Path

import pytest

from maxtext.config.errors import Problem
from maxtext.config.load import load

type Problems = Callable[..., tuple[Problem, ...]]

PATHS = [
    ("dataset_type=grain grain_train_files=gone.jsonl", "no file matches 'gone.jsonl'"),
    ("dataset_type=grain grain_train_files=a.jsonl,gone*.txt", "no file matches 'gone*.txt'"),
    ("dataset_type=grain grain_train_files=folder", "folder is a folder"),
    ("dataset_type=grain grain_train_files=gs://b/a.jsonl", "copied or mounted first"),
    ("dataset_type=grain grain_train_files=a.odd", "the format of a.odd is not known"),
    (
        "dataset_type=grain grain_train_files=a.jsonl eval_interval=5 grain_eval_files=gone.jsonl",
        "no file matches 'gone.jsonl'",
    ),
    ("dataset_type=grain grain_train_files=a.jsonl eval_interval=5", "needs grain_eval_files"),
    ("tokenizer_type=huggingface", "the huggingface tokenizer needs a path"),
    ("tokenizer_type=huggingface tokenizer_path=gone", "there is no file gone"),
    (
        "tokenizer_type=huggingface tokenizer_path=folder",
        "there is no file folder/tokenizer.json",
    ),
    ("load_parameters_path=gone", "does not exist"),
    ("load_full_state_path=gone", "does not exist"),
    ("load_parameters_path=folder", "there is no checkpoint in it"),
    ("load_parameters_path=a.jsonl", "there is no checkpoint in it"),
    ("base_output_directory=", "there is no folder to write to"),
    ("base_output_directory=a.jsonl", "a.jsonl is not a folder"),
    ("base_output_directory=a.jsonl/deeper", "a.jsonl is not a folder"),
    ("base_output_directory=. run_name=a.jsonl", "a.jsonl is not a folder"),
    ("base_output_directory=gs://bucket", "must be a local folder"),
    ("metrics_file=gs://bucket/run.jsonl", "must be a local folder"),
    ("base_output_directory=/proc/maxtext", "/proc cannot be written"),
    (f"run_name={'a' * 256}", "a name in it is too long"),
    ("load_parameters_path=~nobody/no-such-run", "does not exist"),
    (f"load_parameters_path={'a' * 256}", "does not exist"),
    (f"tokenizer_type=huggingface tokenizer_path={'a' * 256}", "there is no file"),
    (f"dataset_type=grain grain_train_files={'a' * 256}", "no file matches"),
    (f"model_name={'a' * 256}", "is no file of configs/models"),
    (f"custom_mesh_and_rule={'a' * 256}", "no such file"),
    ("metrics_file=folder", "is a folder"),
    ("metrics_file=a.jsonl/log.jsonl", "a.jsonl is not a folder"),
]


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    """Two data files and an empty folder."""
    (folder / "folder").mkdir()
    for name in ("a.jsonl", "a.odd"):
        (folder / name).write_text('{"text": "a"}\n')


@pytest.mark.parametrize(("arguments", "text"), PATHS)
def test_a_path_that_cannot_be_is_named(
    arguments: str, text: str, problems: Problems, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "/proc" in arguments:
        # The superuser may write anywhere but there, whatever the permissions say.
        monkeypatch.setattr("os.access", lambda place, mode: str(place) != "/proc")
    before = sorted(folder.rglob("*"))
    (problem,) = problems(*arguments.split(" "))
    assert text in str(problem)
    assert problem.hint or "no such file" in problem.message
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [
        "dataset_type=grain grain_train_files=a.jsonl",
        "dataset_type=grain grain_train_files=*.jsonl",
        "dataset_type=grain grain_train_files=a.odd grain_file_type=jsonl",
        "dataset_type=grain grain_train_files=a.jsonl eval_interval=5 grain_eval_files=a.jsonl",
        "tokenizer_type=huggingface tokenizer_path=a.jsonl",
        "base_output_directory= enable_checkpointing=false enable_tensorboard=false",
        "base_output_directory=new/deep/folder",
        "base_output_directory=folder run_name=new",
        "metrics_file=new/log.jsonl",
    ],
)
def test_paths_that_can_be_are_accepted(arguments: str, folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    load(arguments.split(" "), {})
    assert sorted(folder.rglob("*")) == before

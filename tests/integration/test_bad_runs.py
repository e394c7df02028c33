"""What only devices, data or files can show to be wrong: one clear error each, nothing written."""

import json
import os
import subprocess
import sys

import pytest

KV_SPLIT_OFF = "{kv_heads: [], activation_kv_heads: []}"
GOOD = '{"text": "a good line"}\n'
BAD_MESHES = {
    "degrees that do not fit the devices": (
        {"ici_tensor_parallelism": 3},
        ("ici_tensor_parallelism=3", "does not fit 8 devices"),
    ),
    "more devices than there are": (
        {"ici_fsdp_parallelism": 16},
        ("ici_fsdp_parallelism=16", "8 devices"),
    ),
    "a fraction of a row": (
        {"per_device_batch_size": 0.3},
        ("per_device_batch_size=0.3", "whole number"),
    ),
    "rows that do not divide": (
        {"per_device_batch_size": 0.5},
        ("per_device_batch_size", "4 rows", "8 devices", "multiple of 1"),
    ),
    "evaluation rows that do not divide": (
        {"eval_per_device_batch_size": 0.5, "eval_interval": 1, "eval_steps": 1},
        ("eval_per_device_batch_size", "4 rows"),
    ),
    "kv heads that do not divide": (
        {"ici_tensor_parallelism": 4},
        ("'kv_heads' of size 2", "tensor 4", f"logical_axis_rules='{KV_SPLIT_OFF}'"),
    ),
    "a vocabulary that does not divide": (
        {"ici_tensor_parallelism": 2, "vocab_size": 257},
        ("'vocab' of size 257", "tensor 2"),
    ),
    "an embedding that does not divide": (
        {"base_emb_dim": 60},
        ("'embed' of size 60", "fsdp 8", "more: "),
    ),
}
BAD_DATA = {
    "no JSON": (GOOD + "{broken\n", ("bad.jsonl:2",)),
    "another column": ('{"words": "a"}\n', ("bad.jsonl:1", "text", "words")),
    "a number for a text": ('{"text": 5}\n', ("bad.jsonl:1", "'text' is int")),
    "nothing": ("", ("bad.jsonl:1", "empty")),
    "a torn character": (GOOD.encode() + b'{"text": "\xe2\x82"}\n', ("bad.jsonl:2", "UTF-8")),
}


@pytest.fixture
def refused(runs, capsys):
    """The error of a run that has to end with code 2 before it writes anything."""

    def refused(**keys):
        before = sorted(runs.folder.rglob("*"))
        code = runs.code(
            "bad", run_name="bad", enable_checkpointing=True, enable_tensorboard=True, **keys
        )
        err = capsys.readouterr().err
        assert code == 2, err
        assert err.startswith("error: ")
        assert err.count("error: ") == 1, err
        assert err.count("\n") <= 2, err
        assert "Traceback" not in err
        assert sorted(runs.folder.rglob("*")) == before
        return err

    return refused


@pytest.mark.parametrize(("keys", "says"), BAD_MESHES.values(), ids=BAD_MESHES)
def test_what_does_not_fit_the_devices_is_one_clear_error(refused, keys, says) -> None:
    err = refused(**keys)
    assert [text for text in says if text not in err] == []


def test_the_remedy_for_kv_heads_works(runs) -> None:
    runs.here("good", steps=1, ici_tensor_parallelism=4, logical_axis_rules=KV_SPLIT_OFF)


@pytest.mark.parametrize(("content", "says"), BAD_DATA.values(), ids=BAD_DATA)
def test_bad_data_is_one_clear_error(refused, runs, content, says) -> None:
    path = runs.folder / "data" / "bad.jsonl"
    path.parent.mkdir()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    marks = {"add_bos": False, "add_eos": False}
    err = refused(dataset_type="grain", grain_train_files=path, **marks)
    assert [text for text in says if text not in err] == []


def test_data_without_a_pair_of_tokens_are_one_clear_error(runs, capsys) -> None:
    path = runs.folder / "empty.jsonl"
    path.write_text('{"text": ""}\n')
    keys = {"dataset_type": "grain", "grain_train_files": path, "add_bos": False}
    assert runs.code("run", run_name="run", enable_checkpointing=True, add_eos=False, **keys) == 2
    err = capsys.readouterr().err
    assert "none of the 1 documents has two tokens, so there is nothing to predict" in err
    assert err.count("\n") == 1
    assert runs.checkpoints("run") == []


def test_bad_evaluation_data_is_one_clear_error_before_training(refused, runs, documents) -> None:
    path = runs.folder / "eval.jsonl"
    path.write_text("{broken\n")
    keys = {"dataset_type": "grain", "grain_train_files": documents, "grain_eval_files": path}
    assert "eval.jsonl:1" in refused(eval_interval=10, **keys)


def test_data_that_turn_bad_leave_a_checkpoint_of_the_steps_before(runs, capsys) -> None:
    path = runs.folder / "late.jsonl"
    line = json.dumps({"text": "x" * 40}) + "\n"
    path.write_text(line * 400 + '{"text": 5}\n' + line * 400)
    keys = {"dataset_type": "grain", "grain_train_files": path, "enable_data_shuffling": False}
    code = runs.code("run", steps=500, run_name="run", enable_checkpointing=True, **keys)
    err = capsys.readouterr().err
    assert code == 2
    assert "late.jsonl:401" in err
    assert err.count("\n") == 1
    done = len(runs.steps("run"))
    assert runs.checkpoints("run") == [done]
    assert done > 0


def test_a_metrics_file_of_something_else_is_refused_and_kept(refused, runs) -> None:
    path = runs.folder / "bad.jsonl"
    path.write_text("dear diary\n")
    err = refused(steps=1)
    assert "metrics_file" in err
    assert path.read_text() == "dear diary\n"


def test_an_output_folder_below_a_file_is_refused(refused, runs) -> None:
    (runs.folder / "file").write_text("")
    assert "is not a folder" in refused(base_output_directory=runs.folder / "file" / "runs")


@pytest.mark.parametrize(
    "module", ["maxtext", "maxtext.config", "maxtext.config.load", "maxtext.train"]
)
def test_an_import_waits_for_no_jax(module) -> None:
    program = f"import sys, {module}; print(sorted({{'jax', 'numpy', 'grain'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "[]\n"


def test_a_home_folder_is_written_out(runs, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(runs.folder))
    keys = {"base_output_directory": "~/mine", "run_name": "run", "enable_checkpointing": True}
    runs.here("home", steps=1, **keys)
    assert (runs.folder / "mine" / "run" / "checkpoints" / "1").is_dir()


def test_the_config_is_printed_and_nothing_starts(runs, capsys) -> None:
    assert runs.code("print", print_config=True, steps=7) == 0
    lines = capsys.readouterr().out.splitlines()
    (steps,) = [line for line in lines if line.startswith("steps ")]
    assert steps.split()[1:] == ["7", "command", "line"]
    (heads,) = [line for line in lines if line.startswith("base_num_kv_heads ")]
    assert "t0.yml:" in heads
    assert list(runs.folder.iterdir()) == []

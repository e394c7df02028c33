"""What only devices, data or files can show to be wrong: one clear error each, nothing written."""

import errno
import os
import subprocess
import sys

import pytest

KV_SPLIT_OFF = "{kv_heads: [], activation_kv_heads: []}"
FULL = "stdout cannot be written: No space left on device"
BAD_MESHES = {
    "degrees that do not fit the devices": (
        {"ici_tensor_parallelism": 3},
        ("ici_tensor_parallelism=3", "does not fit 8 devices"),
    ),
    "more devices than there are": (
        {"ici_fsdp_parallelism": 16},
        ("ici_fsdp_parallelism=16", "8 devices"),
    ),
    "rows that do not divide over context": (
        {"ici_context_parallelism": 2, "max_target_length": 34},
        ("max_target_length=34: context 2", "a multiple of 4 tokens; use 32 or 36"),
    ),
    "rows that do not divide over tensor_sequence": (
        {"ici_tensor_sequence_parallelism": 8, "base_num_kv_heads": 8, "max_target_length": 34},
        ("max_target_length=34: tensor_sequence 8", "use 32 or 40"),
    ),
    "dropout on tokens in another order": (
        {"ici_context_parallelism": 2, "dropout_rate": 0.1},
        ("dropout_rate=0.1", "context_parallel_load_balance=false"),
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
    "tiles of the vocabulary that do not divide": (
        {"ici_tensor_parallelism": 2, "num_vocab_tiling": 256},
        ("num_vocab_tiling=256", "1 tokens of the vocabulary", "2 devices"),
    ),
    "more rows than can be counted": (
        {"per_device_batch_size": 1e30},
        ("per_device_batch_size", "more than a batch can hold"),
    ),
    "more passes than can be counted": (
        {"gradient_accumulation_steps": 2**31 - 1},
        ("gradient_accumulation_steps", "more than a batch can hold"),
    ),
    "rows longer than can be counted": (
        {"max_target_length": 2**30, "max_position_embeddings": 2**30},
        ("max_target_length", "more than a batch can hold"),
    ),
    "a model larger than the machine": (
        {"base_emb_dim": 80_000_000},
        ("weights and optimizer take", "GiB", "this machine has"),
    ),
}


@pytest.mark.parametrize(("keys", "says"), BAD_MESHES.values(), ids=BAD_MESHES)
def test_what_does_not_fit_the_devices_is_one_clear_error(refused, keys, says) -> None:
    err = refused(**keys)
    assert [text for text in says if text not in err] == []


def test_the_remedy_for_kv_heads_works(runs) -> None:
    runs.here("good", steps=1, ici_tensor_parallelism=4, logical_axis_rules=KV_SPLIT_OFF)


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


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a"), "No space left on device: a"),
        (MemoryError(), "out of memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."), "out of memory"),
    ],
)
def test_what_the_machine_has_not_is_one_line(runs, capsys, monkeypatch, error, says) -> None:
    def fail(config):
        raise error

    monkeypatch.setattr("maxtext.training.loop.train", fail)
    assert runs.code("run") == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {says}")
    assert err.count("\n") == 1


def test_an_error_of_ours_keeps_its_traceback(runs, monkeypatch) -> None:
    def fail(config):
        raise RuntimeError("ours")

    monkeypatch.setattr("maxtext.training.loop.train", fail)
    with pytest.raises(RuntimeError, match="ours"):
        runs.code("run")


def test_another_models_checkpoint_is_one_error_of_several_lines(runs, capsys) -> None:
    saves = {"run_name": "run", "enable_checkpointing": True}
    runs.here("run", steps=1, **saves)
    assert runs.code("run", steps=2, base_emb_dim=128, **saves) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("error: checkpoint step 1 ")
    assert "is not of this model" in first
    assert others
    assert all(line.startswith("  ") for line in others)
    assert runs.checkpoints("run") == [1]


def test_a_reader_that_leaves_early_ends_no_run(runs) -> None:
    process = runs.start("run", steps=9)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() == 0
    assert len(runs.steps("run")) == 9


def test_a_full_stdout_is_said_once_and_ends_no_run(runs) -> None:
    done = program(runs.argv("run", steps=3))
    assert (done.returncode, done.stderr) == (0, f"error: {FULL}\n")
    assert len(runs.steps("run")) == 3


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{"enable_tensorboard": True}, {"metrics_file": "run.jsonl"}])
def test_a_full_disk_ends_a_run_with_one_clear_error(runs, keys) -> None:
    # As if the disk were full: no file may grow over 4 kB.
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (4096, 4096))"
    run = "import signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
    start = "from maxtext.train import main; sys.exit(main(sys.argv[1:]))"
    argv = runs.argv("run", **{"steps": 500, "run_name": "run", "metrics_file": "", **keys})
    done = subprocess.run(
        [sys.executable, "-c", f"{limit}; {run}; {start}", *argv],
        cwd=runs.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: File too large: ")
    assert done.stderr.count("\n") == 1


def test_help_to_a_full_stdout_is_one_clear_error() -> None:
    done = program(["--help"])
    assert (done.returncode, done.stderr) == (1, f"error: {FULL}\n")


def test_devices_that_are_not_there_are_one_clear_error(runs) -> None:
    done = program(runs.argv("run"), JAX_PLATFORMS="rocket")
    assert done.returncode == 2
    assert done.stderr.startswith("error: JAX_PLATFORMS=rocket: ")
    assert done.stderr.count("\n") <= 2


def program(argv, **environ):
    """What `maxtext.train` returns that writes to a full device."""
    with open("/dev/full", "w") as full:
        return subprocess.run(
            [sys.executable, "-m", "maxtext.train", *argv],
            env={**os.environ, **environ},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

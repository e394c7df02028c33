"""Weights of other projects through the command lines that a user types."""

import subprocess
import sys
from pathlib import Path

import pytest

from hf_folder import LLAMA, random_tensors, read_folder, write_folder
from maxtext import convert, decode

BF16 = LLAMA | {"tie_word_embeddings": True}


def text(capfd: pytest.CaptureFixture[str], *argv: str) -> str:
    capfd.readouterr()
    mesh = ["ici_data_parallelism=8", "ici_fsdp_parallelism=1"]
    assert decode.main([*argv, *mesh, "max_new_tokens=8", "max_target_length=32"]) == 0
    return capfd.readouterr().out


@pytest.mark.slow
def test_runs_start_from_a_hugging_face_folder_and_go_back(
    runs, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "hf", BF16, random_tensors(BF16, dtype="bfloat16"))
    assert convert.main(["from_hf", str(folder), str(tmp_path / "ours")]) == 0

    # No YAML and no size: the model is that of the weights, whatever kind of folder and mesh.
    monkeypatch.setattr(runs, "argv", lambda name, **keys: short(runs, name, **keys))
    kept = {"enable_checkpointing": True, "run_name": "kept"}
    first = runs.here("kept", load_parameters_path=folder, steps=2, **kept)
    split = {"ici_fsdp_parallelism": 2, "ici_tensor_parallelism": 2, "ici_data_parallelism": 2}
    second = runs.here("split", load_parameters_path=tmp_path / "ours", steps=2, **split)
    assert [one["loss"] for one in second] == pytest.approx(
        [one["loss"] for one in first], rel=1e-5
    )

    # A run's own checkpoint is the same model there.
    assert convert.main(["to_hf", str(runs.output / "kept"), str(tmp_path / "back")]) == 0
    assert read_folder(tmp_path / "back").keys() == read_folder(folder).keys()
    prompt = "prompt=to be or"
    here = text(capfd, f"load_parameters_path={runs.output / 'kept'}", prompt)
    assert here.startswith("to be or")
    assert text(capfd, f"load_parameters_path={tmp_path / 'back'}", prompt) == here
    before = text(capfd, f"load_parameters_path={folder}", prompt)
    assert text(capfd, f"load_parameters_path={tmp_path / 'ours'}", prompt) == before


def short(runs, name: str, **keys: object) -> list[str]:
    """A run on synthetic data that names no size."""
    own = {
        "metrics_file": runs.folder / f"{name}.jsonl",
        "base_output_directory": runs.output,
        "enable_checkpointing": False,
        "enable_tensorboard": False,
        "max_target_length": 32,
        "ici_data_parallelism": 8,
        "ici_fsdp_parallelism": 1,
        "per_device_batch_size": 1,
        "matmul_precision": "highest",
        "warmup_steps_fraction": 0,
        "learning_rate": 1e-3,
    }
    values = {key: str(value) for key, value in (own | keys).items()}
    return [f"{k}={v.lower() if v in ('True', 'False') else v}" for k, v in values.items()]


def test_help_comes_without_jax() -> None:
    code = "import sys; from maxtext.convert import main; main(['--help']); "
    code += "sys.exit(any(one in sys.modules for one in ('jax', 'numpy', 'orbax')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python -m maxtext.convert from_hf")

"""Fused projections through the command line: a run may go on as another one, and go back."""

import json

import pytest

from hf_folder import LLAMA, random_tensors, read_folder, write_folder
from maxtext import convert, decode

SAVES = {"enable_checkpointing": True}
FUSED = {"fused_qkv": True, "fused_mlp": True}
SPLIT = {"ici_data_parallelism": 2, "ici_fsdp_parallelism": 2, "ici_tensor_parallelism": 2}


def assert_same(got, want) -> None:
    assert [step["batch_digest"] for step in got] == [step["batch_digest"] for step in want]
    for name in ("loss", "grad_norm", "total_weights"):
        values = [[step[name] for step in steps] for steps in (got, want)]
        assert values[0] == pytest.approx(values[1], rel=1e-5), name


@pytest.mark.parametrize(
    ("opt_type", "turns"),
    [
        ("adamw", ({}, FUSED, {"fused_qkv": True})),
        pytest.param("muon", (FUSED, {}, {"fused_mlp": True}), marks=pytest.mark.slow),
        pytest.param("adafactor", ({"fused_qkv": True}, {}, FUSED), marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_whatever_is_fused(runs, opt_type, turns) -> None:
    keys = {"opt_type": opt_type, "learning_rate_schedule_steps": 6, **SPLIT}
    want = runs.here("straight", steps=6, **keys)
    for steps, fused in zip((2, 4, 6), turns, strict=True):
        got = runs.here("turns", run_name="turns", steps=steps, **SAVES, **keys, **fused)
    assert_same(got, want)


@pytest.mark.slow
def test_a_fused_run_leaves_no_trace_where_it_stops(runs) -> None:
    want = runs.here("straight", steps=4, **FUSED)
    for steps in (2, 4):
        keys = {"learning_rate_schedule_steps": 4, **SAVES, **FUSED}
        got = runs.here("stops", run_name="stops", steps=steps, **keys)
    assert got == want


def test_weights_of_hugging_face_come_back_bit_by_bit(runs, tmp_path, capfd) -> None:
    folder = write_folder(tmp_path / "hf", LLAMA, random_tensors(LLAMA))
    own = {
        "load_parameters_path": folder,
        "base_output_directory": runs.output,
        "run_name": "kept",
        "steps": 1,
        "learning_rate": 0.0,
        "max_target_length": 32,
        "per_device_batch_size": 1,
        "enable_tensorboard": False,
        "log_config": False,
        **SPLIT,
        **FUSED,
    }
    argv = [f"{key}={json.dumps(v) if isinstance(v, bool) else v}" for key, v in own.items()]
    from maxtext import train

    assert train.main(argv) == 0
    assert convert.main(["to_hf", str(runs.output / "kept"), str(tmp_path / "back")]) == 0
    assert read_folder(tmp_path / "back") == read_folder(folder)

    # The same text from the same checkpoint, fused or not.
    texts, mesh = [], ("ici_data_parallelism=8", "ici_fsdp_parallelism=1")
    for fused in ((), ("fused_qkv=true", "fused_mlp=true")):
        capfd.readouterr()
        words = [f"load_parameters_path={runs.output / 'kept'}", "prompt=to be", *mesh, *fused]
        assert decode.main([*words, "max_new_tokens=6", "max_target_length=32"]) == 0
        texts.append(capfd.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[0].startswith("to be")

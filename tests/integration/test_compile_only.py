"""`compile_only=true`: what the step of a run would do, before there are weights or data."""

import json
from pathlib import Path
from typing import Any

import pytest

from maxtext.metrics.devices import MemoryUse
from maxtext.parallel.hlo import instructions
from maxtext.training import compiling

MESH = {"ici_fsdp_parallelism": 4, "ici_tensor_parallelism": 2}
# FLOPs of T0 for a token: products with weights, and with keys and values of a row of 32 tokens.
WEIGHTS, ATTENTION = 516_096, 49_152
TOKENS = 8 * 32


def compiled(runs, name: str = "c", **keys: object) -> dict[str, Any]:
    """The figures of a run that compiles only."""
    assert runs.code(name, compile_only=True, run_name=name, **keys) == 0
    return json.loads((runs.output / name / "compiled" / "program.json").read_text())


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_program_is_told_and_written_and_nothing_else_is(runs, capsys) -> None:
    report = compiled(runs, **MESH, enable_checkpointing=True, enable_tensorboard=True)
    assert written(runs.folder) == {
        "output/c/compiled/program.json",
        "output/c/compiled/train_step.hlo.txt",
    }
    text = (runs.output / "c" / "compiled" / "train_step.hlo.txt").read_text()
    assert {"dot", "while", "all-gather"} <= {one.opcode for one in instructions(text)}
    assert report["devices"] == 8
    assert report["mesh"] == {"fsdp": 4, "tensor": 2}
    memory = report["memory_bytes"]
    # Weights and two moments over four, tokens and their kin, a step's number and learning rate.
    assert memory["arguments"] > 102_720 * 3 * 4 / 8
    assert memory["aliased"] > 102_720 * 3 * 4 / 8
    out = capsys.readouterr().out
    assert "step compiled in" in out
    assert "completed step" not in out
    assert "memory a device, GiB: arguments 0.0" in out
    assert " T of the model, " in out
    for one in report["collectives"]:
        row = [one["kind"], *" x ".join(one["axes"]).split(), str(one["count"])]
        assert any(line.split()[: len(row)] == row for line in out.splitlines())


def test_collectives_are_those_of_the_mesh(runs) -> None:
    found = compiled(runs, **MESH, scan_layers=True)["collectives"]
    counts = {(one["kind"], *one["axes"]): one["count"] for one in found}
    # Seven weights a layer are gathered over fsdp, forward and backward, and their gradients are
    # summed over it: two layers, then embedding, head and norm.
    assert counts["all-gather", "fsdp"] >= 2 * 2 * 7
    assert counts["all-reduce", "fsdp"] > 0
    assert counts["all-reduce", "tensor"] >= 2 * 2 * 2
    assert all(one["bytes"] > 0 for one in found)


@pytest.mark.parametrize(
    ("scan", "attention"),
    [(True, ATTENTION * 7 / 6), pytest.param(False, ATTENTION, marks=pytest.mark.slow)],
    ids=["scanned", "unrolled"],
)
def test_flops_of_the_program_are_those_of_the_model(runs, scan: bool, attention: float) -> None:
    # Each device has all weights here and an eighth of the rows, so nothing is done twice. Nothing
    # is computed anew either but the scores of attention: seven products in the place of six,
    # unless XLA sees both in one piece and keeps the first.
    report = compiled(
        runs,
        ici_fsdp_parallelism=1,
        ici_data_parallelism=8,
        remat_policy="none",
        scan_layers=scan,
    )
    assert report["model_flops"] * 8 == TOKENS * (WEIGHTS + ATTENTION)
    assert report["product_flops"] * 8 == TOKENS * (WEIGHTS + attention)


@pytest.mark.slow
def test_a_model_larger_than_the_machine_is_compiled(runs) -> None:
    # 460 GB of weights and optimizer.
    report = compiled(runs, base_mlp_dim=100_000_000)
    assert report["memory_bytes"]["arguments"] > 50e9


def test_data_are_not_read(runs, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("this is no JSON\n")
    compiled(runs, dataset_type="grain", grain_train_files=data)


@pytest.mark.parametrize(("limit", "says"), [(2**40, "it fits"), (2**10, "it does not fit")])
def test_a_device_that_tells_its_memory_is_held_to_it(
    runs, capsys, monkeypatch, limit: int, says: str
) -> None:
    use = MemoryUse(in_use=0, limit=limit)
    monkeypatch.setattr(compiling, "memory_use", lambda: use)
    assert compiled(runs)["memory_limit_bytes"] == limit
    assert f"; {says}: a device has" in capsys.readouterr().out


def test_what_does_not_fit_the_devices_is_refused_before_anything_is_written(runs, capsys) -> None:
    assert runs.code("c", compile_only=True, run_name="c", ici_tensor_parallelism=3) == 2
    assert "error: " in capsys.readouterr().err
    assert written(runs.folder) == set()

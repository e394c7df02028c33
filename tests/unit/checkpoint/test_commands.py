"""`python -m maxtext.checkpoint`: exit codes, what is printed, what is written."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from maxtext.checkpoint import files
from maxtext.checkpoint.__main__ import main
from maxtext.checkpoint.arrays import chunk_shape, chunks
from maxtext.checkpoint.checksums import json_checksum
from maxtext.checkpoint.errors import CheckpointError
from maxtext.checkpoint.loading import load_parameters
from maxtext.checkpoint.pieces import Leaf, WeightsReader, WeightsWriter
from maxtext.checkpoint.store import CheckpointStore

type Make = Callable[..., Any]

CONFIG = {"run_name": "r", "steps": 40, "weight_dtype": "float32"}


def save(folder: Path, step: int, state: Any, **changes: Any) -> Path:
    with CheckpointStore(folder, keep=-1, asynchronous=False) as store:
        keys = {"data_state": {"at": step}, "config": CONFIG, "eval_loss": 1 / step} | changes
        store.save(step, state, **keys)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, state_on: Make) -> Path:
    folder = tmp_path_factory.mktemp("run")
    for step in (9, 10):
        save(folder / "checkpoints", step, state_on("both", step))
    return folder


def done(argv: Sequence[object], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code and what was printed."""
    try:
        code = main([str(one) for one in argv])
    except SystemExit as stop:
        code = int(str(stop.code))
    out, err = capsys.readouterr()
    return code, out, err


def test_a_checkpoint_is_told_in_words_and_in_json(run, capsys) -> None:
    code, text, err = done(["inspect", run], capsys)
    assert (code, err) == (0, "")
    assert "step 10" in text
    assert "  best" in text.splitlines()[3]
    code, out, _ = done(["inspect", "--json", run / "checkpoints" / "9"], capsys)
    report = json.loads(out)
    assert code == 0
    assert [(one["step"], one["eval_loss"], one["best"]) for one in report["steps"]] == [
        (9, 1 / 9, False),
        (10, 1 / 10, True),
    ]
    files = [path for path in (run / "checkpoints" / "9").rglob("*") if path.is_file()]
    assert report["steps"][0]["bytes"] == sum(path.stat().st_size for path in files)
    assert (report["step"], report["config"], report["data"]) == (9, CONFIG, [{"at": 9}])
    assert report["not_default"] == {"run_name": "r", "steps": 40}
    groups = {group["group"]: group for group in report["groups"]}
    # kernel 8 x 16, scale 8 in bfloat16, mask 8; optax keeps two moments of the first two.
    assert groups["params in all"]["elements"] == 128 + 8 + 8
    assert groups["params in all"]["bytes"] == 4 * 128 + 2 * 8 + 8
    assert groups["opt_state"]["elements"] == 2 * (128 + 8) + 1
    assert groups["all"]["arrays"] == 9


def test_equal_steps_are_equal_and_others_are_told_apart(run, tmp_path, state_on, capsys) -> None:
    same = save(tmp_path / "same", 10, state_on("rows", 10))
    assert done(["diff", run, same], capsys) == (0, "equal\n", "")
    state = state_on("one", 10)
    kernel = np.asarray(state.params.kernel).copy()
    kernel[3, 5] += 0.25
    kernel[0, 0] = np.nan
    changed = dataclasses.replace(
        state, params=dataclasses.replace(state.params, kernel=jnp.asarray(kernel))
    )
    other = save(tmp_path / "other", 10, changed, config=CONFIG | {"steps": 50}, data_state={})
    code, out, err = done(["diff", run, other], capsys)
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "config steps: 40 | 50",
        "data: another place in the data",
        "params/kernel: 2 of 128 elements differ, by nan at most",
    ]
    kernel[0, 0] = np.asarray(state.params.kernel)[0, 0]
    params = dataclasses.replace(state.params, kernel=jnp.asarray(kernel), mask=jnp.zeros(4))
    other = save(tmp_path / "more", 10, dataclasses.replace(state, params=params))
    code, out, _ = done(["diff", "--params-only", run, other], capsys)
    assert code == 1
    assert out.splitlines() == [
        "params/kernel: 1 of 128 elements differ, by 0.25 at most",
        "params/mask: bool[8] | float32[4]",
    ]


def test_a_missing_array_is_told(run, tmp_path, state_on, capsys) -> None:
    params = {"params": {"kernel": state_on("one", 10).params.kernel}}
    other = save(tmp_path, 10, params)
    code, out, _ = done(["diff", "--params-only", other, run], capsys)
    assert code == 1
    assert out.splitlines() == [
        "params/scale: missing | bfloat16[8]",
        "params/mask: missing | bool[8]",
    ]


@pytest.fixture(params=[2**30, 64])
def whole_bytes(request, monkeypatch) -> None:
    """Arrays are read whole, or chunk by chunk."""
    monkeypatch.setattr("maxtext.checkpoint.arrays._WHOLE_BYTES", request.param)


@pytest.mark.usefixtures("whole_bytes")
def test_a_step_in_other_chunks_is_the_same_step(
    run, tmp_path, target_on, state_on, require_equal, capsys
) -> None:
    code, out, _ = done(["reshard", run, tmp_path, "--chunk-mib", 100 / 2**20], capsys)
    assert (code, out) == (0, f"written to {tmp_path / '10'}\n")
    assert done(["diff", run, tmp_path], capsys)[:2] == (0, "equal\n")
    metadata = b"".join(
        path.read_bytes() for path in (tmp_path / "10").rglob("*") if path.is_file()
    )
    assert b"chunk_shape" in metadata
    with CheckpointStore(tmp_path, keep=-1, asynchronous=False) as store:
        for mesh in ("one", "columns"):
            require_equal(store.restore(10, target_on(mesh)).state, state_on("one", 10))


def test_orbax_reads_what_is_written(run, tmp_path, state_on, capsys) -> None:
    done(["reshard", run, tmp_path], capsys)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        folder = tmp_path / "10" / "state"
        described = reader.metadata(folder).item_metadata.tree
        plain = ocp.RestoreArgs(restore_type=np.ndarray)
        args = ocp.args.PyTreeRestore(restore_args=jax.tree.map(lambda _: plain, described))
        tree = reader.restore(folder, args=args)
    np.testing.assert_array_equal(tree["params"]["kernel"], state_on("one", 10).params.kernel)


def test_weights_alone_in_another_type(run, tmp_path, target_on, state_on, capsys) -> None:
    argv = ["reshard", run, tmp_path, "--params-only", "--dtype", "bfloat16"]
    assert done(argv, capsys)[0] == 0
    target = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16, sharding=leaf.sharding),
        target_on("rows").params,
    )
    params = load_parameters(tmp_path, target)
    want = state_on("one", 10).params
    np.testing.assert_array_equal(params.kernel, want.kernel.astype(jnp.bfloat16))
    config = json.loads((tmp_path / "10" / "config" / "metadata").read_text())
    assert config == CONFIG | {"weight_dtype": "bfloat16"}
    code, out, _ = done(["diff", "--params-only", run, tmp_path], capsys)
    assert code == 1
    assert "params/kernel: float32[8,16] | bfloat16[8,16]" in out
    with pytest.raises(CheckpointError, match="arrays differ"):
        load_parameters(tmp_path, target_on("rows").params)


def test_a_damaged_step_is_not_written_again(run, tmp_path, capsys) -> None:
    shutil.copytree(run / "checkpoints" / "10", tmp_path / "in" / "10")
    sums = tmp_path / "in" / "10" / "checksums" / "metadata"
    values = json.loads(sums.read_text())
    values["leaves"]["params/kernel"]["checksum"] += 1
    values["self"] = json_checksum([values["leaves"], values["values"]])
    sums.write_text(json.dumps(values))
    code, _, err = done(["reshard", tmp_path / "in", tmp_path / "out"], capsys)
    assert code == 2
    assert "params/kernel is not what was written" in err
    assert not (tmp_path / "out").exists()


def test_a_step_with_a_changed_config_is_not_written_again(run, tmp_path, capsys) -> None:
    shutil.copytree(run / "checkpoints" / "10", tmp_path / "in" / "10")
    (tmp_path / "in" / "10" / "config" / "metadata").write_text(json.dumps(CONFIG | {"steps": 41}))
    code, _, err = done(["reshard", tmp_path / "in", tmp_path / "out"], capsys)
    assert code == 2
    assert "config/metadata is not what was written" in err
    assert not (tmp_path / "out").exists()


def test_weights_that_were_converted_are_written_again(tmp_path, capsys) -> None:
    kernel = np.arange(12, dtype=np.float32).reshape(4, 3)
    writer = WeightsWriter(tmp_path / "in" / "0")
    writer.add("kernel", Leaf(kernel.shape, kernel.dtype), stacked=False)
    writer.write("kernel", kernel, at=0)
    writer.finish(CONFIG)
    assert done(["reshard", tmp_path / "in", tmp_path / "out"], capsys)[0] == 0
    assert done(["diff", tmp_path / "in", tmp_path / "out"], capsys)[:2] == (0, "equal\n")
    reader = WeightsReader(tmp_path / "out", "checkpoint")
    assert reader.config == CONFIG
    np.testing.assert_array_equal(np.concatenate(list(reader.pieces("kernel"))), kernel)


def test_what_is_interrupted_leaves_nothing(run, tmp_path, capsys, monkeypatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_write_tree_metadata", stop)
    code, _, err = done(["reshard", run, tmp_path / "out"], capsys)
    assert (code, err.splitlines()[-1]) == (130, "interrupted")
    assert not (tmp_path / "out").exists()


BAD = {
    "no command": ("", "are required: COMMAND"),
    "an unknown command": ("look {run}", "invalid choice: 'look'"),
    "no path": ("inspect gone", "gone: there is no such path"),
    "a folder of something else": ("inspect {run}/..", "no checkpoint in it"),
    "one path too few": ("diff {run}", "required: second"),
    "a second path that is none": ("diff {run} gone", "gone: there is no such path"),
    "a folder that holds the step": ("reshard {run} {run}/checkpoints", "is there already"),
    "a folder that is a file": ("reshard {run} {file}", "file is not a folder"),
    "a folder in the home of nobody": ("reshard {run} ~no-such-user/x", "is nobody's home folder"),
    "chunks of nothing": ("reshard {run} new --chunk-mib 0", "must be a number above 0"),
    "another type for the optimizer too": ("reshard {run} new --dtype bfloat16", "--params-only"),
    "an unknown type": ("reshard {run} new --dtype int8", "invalid choice: 'int8'"),
    "half of its metadata": ("inspect {torn}", "checksums/metadata cannot be read"),
    "a config that is no mapping": ("inspect {odd}", "config/metadata is not what was written"),
    "the same of another": ("diff {run} {odd}", "config/metadata is not what was written"),
    "a place in the data that is none": ("inspect {lost}", "data/metadata is not what was written"),
    "metadata without end": ("diff {run} {deep}", "data/metadata cannot be read"),
}


@pytest.mark.parametrize(("line", "says"), BAD.values(), ids=BAD)
def test_a_bad_input_is_one_clear_error(line, says, run, tmp_path, capsys) -> None:
    for name, item, text in (
        ("torn", "checksums", "{"),
        ("odd", "config", "5"),
        ("lost", "data", "null"),
        ("deep", "data", "[" * 100_000),
    ):
        shutil.copytree(run / "checkpoints" / "10", tmp_path / name / "10")
        (tmp_path / name / "10" / item / "metadata").write_text(text)
    (tmp_path / "file").write_text("")
    places = {name: tmp_path / name for name in ("file", "torn", "odd", "lost", "deep")}
    before = sorted(tmp_path.rglob("*"))
    argv = line.format(**places, run=run).split()
    code, out, err = done(argv, capsys)
    assert (code, out) == (2, "")
    assert says in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_help_and_inspection_wait_for_no_jax(run) -> None:
    program = (
        "import sys; from maxtext.checkpoint.__main__ import main; main(sys.argv[1:]); "
        "print(sorted({'jax', 'numpy', 'orbax'} & set(sys.modules)))"
    )
    argv = [sys.executable, "-c", program, "inspect", str(run)]
    out = subprocess.run(argv, capture_output=True, text=True, check=True, env=os.environ).stdout
    assert out.splitlines()[-1] == "[]"


def test_chunks_make_up_the_whole_and_end_where_shards_end() -> None:
    assert chunk_shape((32, 4096, 14336), 4, most_bytes=64 * 2**20) == (32, 512, 896)
    assert chunk_shape((7, 3), 4, most_bytes=1) == (1, 1)
    assert chunk_shape((), 4, most_bytes=1) == ()
    counted = np.zeros((8, 6), int)
    for place in chunks((8, 6), (3, 4)):
        counted[place] += 1
    assert (counted == 1).all()

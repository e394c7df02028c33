"""Weights written piece by piece are a step like any other."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from maxtext.checkpoint import pieces
from maxtext.checkpoint.checksums import array_checksums
from maxtext.checkpoint.errors import CheckpointError, CheckpointMismatch, DamagedCheckpoint
from maxtext.checkpoint.loading import load_full_state, load_parameters
from maxtext.checkpoint.pieces import Leaf, WeightsReader, WeightsWriter
from maxtext.checkpoint.store import CheckpointStore
from maxtext.parallel.params import named_leaves, pytree

CONFIG = {"base_emb_dim": 6}


@pytree
class Weights:
    stacked: Any
    table: Any
    scale: Any


def numbers() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {
        "stacked": draw.standard_normal((3, 6, 4, 2)).astype(jnp.bfloat16),
        "table": draw.standard_normal((10, 6)).astype(np.float32),
        "scale": np.arange(6, dtype=np.float16),
    }


def target(dtype: str | None = None) -> Weights:
    mesh = jax.make_mesh((2,), ("x",), (AxisType.Auto,), devices=jax.devices()[:2])
    specs = {"stacked": PartitionSpec(None, "x"), "table": PartitionSpec(None, "x")}
    return Weights(
        **{
            name: jax.ShapeDtypeStruct(
                x.shape,
                dtype or x.dtype,
                sharding=NamedSharding(mesh, specs.get(name, PartitionSpec())),
            )
            for name, x in numbers().items()
        }
    )


def write(folder: Path, **changed: np.ndarray) -> None:
    writer = WeightsWriter(folder / "0")
    for name, x in (numbers() | changed).items():
        writer.add(name, Leaf(x.shape, x.dtype), stacked=name == "stacked")
        for at in range(0, len(x), 1 if name == "stacked" else 4):
            writer.write(name, x[at : at + (1 if name == "stacked" else 4)], at=at)
    writer.finish(CONFIG)


@pytest.fixture(params=[1, 100, 2**26], ids=["rows", "a few rows", "large chunks"])
def written(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch) -> Path:
    monkeypatch.setattr(pieces, "_MAX_CHUNK_BYTES", request.param)
    write(tmp_path)
    return tmp_path


def test_what_is_written_piece_by_piece_is_read_as_a_checkpoint(written: Path) -> None:
    loaded = named_leaves(load_parameters(written, target()))
    for name, x in numbers().items():
        assert loaded[name].dtype == x.dtype
        assert np.asarray(loaded[name]).tobytes() == x.tobytes(), name


def test_orbax_reads_it(written: Path) -> None:
    handler = ocp.PyTreeCheckpointHandler()
    options = {"restore_type": np.ndarray}
    args = {name: ocp.RestoreArgs(**options) for name in numbers()}
    with ocp.Checkpointer(handler) as checkpointer:
        read = checkpointer.restore(
            written.absolute() / "0" / "state",
            args=ocp.args.PyTreeRestore(restore_args={"params": args}),
        )
    for name, x in numbers().items():
        assert np.asarray(read["params"][name]).tobytes() == x.tobytes(), name


def test_pieces_are_what_was_written(written: Path) -> None:
    reader = WeightsReader(written, "checkpoint")
    assert reader.config == CONFIG
    for name, x in numbers().items():
        assert reader.leaves[name] == Leaf(x.shape, x.dtype)
        assert np.concatenate(list(reader.pieces(name))).tobytes() == x.tobytes(), name
    assert [len(piece) for piece in reader.pieces("stacked")] == [1, 1, 1]


def test_the_checkpoint_of_a_run_is_read_in_pieces(
    tmp_path: Path, state_on: Callable[..., Any]
) -> None:
    state = state_on("both", 5)
    with CheckpointStore(tmp_path / "checkpoints", keep=-1, asynchronous=False) as store:
        store.save(5, state, data_state={}, config=CONFIG)
    reader = WeightsReader(tmp_path, "checkpoint")
    assert reader.folder.name == "5"
    assert set(reader.leaves) == {"kernel", "scale", "mask"}
    for name, x in named_leaves(state.params).items():
        got = np.concatenate(list(reader.pieces(name)))
        assert got.tobytes() == np.asarray(x).tobytes(), name


def test_a_changed_number_is_damage(tmp_path: Path) -> None:
    write(tmp_path)
    changed = numbers()["table"]
    changed[7, 3] += 1
    write(tmp_path / "other", table=changed)
    state = tmp_path / "0" / "state"
    state.rename(tmp_path / "before")
    (tmp_path / "other" / "0" / "state").rename(state)
    with pytest.raises(DamagedCheckpoint, match="table is not what was written"):
        list(WeightsReader(tmp_path, "checkpoint").pieces("table"))


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "0" / "state" / "manifest.ocdbt").unlink()
    with pytest.raises(DamagedCheckpoint, match="table cannot be read"):
        list(WeightsReader(tmp_path, "checkpoint").pieces("table"))
    (tmp_path / "0" / "config" / "metadata").unlink()
    with pytest.raises(DamagedCheckpoint, match="config/metadata is missing"):
        WeightsReader(tmp_path, "checkpoint")


def test_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"checkpoint=.*: no checkpoint in it"):
        WeightsReader(tmp_path, "checkpoint")


def test_what_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("in the way")
    writer = WeightsWriter(tmp_path / "0")
    leaf = Leaf((2,), np.dtype(np.float32))
    with pytest.raises(CheckpointError, match="scale cannot be written: Not a directory"):
        writer.add("scale", leaf, stacked=False)


def test_weights_of_16_bits_are_read_into_32_and_not_the_other_way(tmp_path: Path) -> None:
    write(tmp_path)
    loaded = named_leaves(load_parameters(tmp_path, target("float32")))
    for name, x in numbers().items():
        assert loaded[name].dtype == np.float32
        assert np.array_equal(np.asarray(loaded[name]), x.astype(np.float32)), name
        assert loaded[name].sharding == named_leaves(target())[name].sharding
    narrow = dataclasses.replace(target(), table=target("bfloat16").table)
    with pytest.raises(CheckpointMismatch, match=r"params/table float32.*wants bfloat16"):
        load_parameters(tmp_path, narrow)


def test_it_holds_no_state_of_a_run(tmp_path: Path, target_on: Callable[..., Any]) -> None:
    write(tmp_path)
    with pytest.raises(CheckpointMismatch, match="checkpoint has no step"):
        load_full_state(tmp_path, target_on("one"))


def test_checksums_do_not_depend_on_the_pieces(tmp_path: Path) -> None:
    write(tmp_path)
    saved = WeightsReader(tmp_path, "checkpoint")
    want = array_checksums({name: jnp.asarray(x) for name, x in numbers().items()})
    assert {name: one["checksum"] for name, one in saved._saved.items()} == want

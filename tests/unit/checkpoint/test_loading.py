import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from maxtext.checkpoint.errors import CheckpointError, CheckpointMismatch, DamagedCheckpoint
from maxtext.checkpoint.loading import load_full_state, load_parameters
from maxtext.checkpoint.store import CheckpointStore

type Make = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, state_on: Make) -> Path:
    """A run's folder with steps 9 and 10."""
    folder = tmp_path_factory.mktemp("run")
    with CheckpointStore(folder / "checkpoints", keep=-1, asynchronous=False) as store:
        for step in (9, 10):
            store.save(step, state_on("both", step), data_state={"at": step}, config={"a": 1})
    return folder


@pytest.mark.parametrize(
    ("place", "step"), [("", 10), ("checkpoints", 10), ("checkpoints/9", 9), ("checkpoints/10", 10)]
)
def test_weights_come_from_a_run_its_checkpoints_or_one_step(
    place: str, step: int, run: Path, state_on: Make, target_on: Make, require_equal: Make
) -> None:
    params = load_parameters(run / place, target_on("rows").params)
    require_equal(params, state_on("one", step).params)
    full = load_full_state(run / place, target_on("columns"))
    require_equal(full.state, state_on("one", step))
    assert (full.step, full.data_states, full.config) == (step, [{"at": step}], {"a": 1})


def test_weights_of_another_type_are_refused(run: Path, target_on: Make) -> None:
    target = target_on("rows").params
    half = jax.ShapeDtypeStruct(target.kernel.shape, jnp.bfloat16, sharding=target.kernel.sharding)
    with pytest.raises(
        CheckpointMismatch, match=r"params/kernel float32\[8,16\].*wants bfloat16\[8,16\]"
    ) as caught:
        load_parameters(run, dataclasses.replace(target, kernel=half))
    assert "weight_dtype=float32" in str(caught.value)


def test_a_path_that_does_not_exist_is_named_with_what_is_there(run: Path, target_on: Make) -> None:
    with pytest.raises(
        CheckpointError, match=r"load_parameters_path=.*/11: no such folder; .*holds 10/, 9/"
    ):
        load_parameters(run / "checkpoints" / "11", target_on("one").params)


def test_a_path_without_a_checkpoint_is_named_with_what_it_holds(
    run: Path, tmp_path: Path, target_on: Make
) -> None:
    with pytest.raises(CheckpointError, match=r"load_full_state_path=.*: no checkpoint.*is empty"):
        load_full_state(tmp_path, target_on("one"))
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "first").symlink_to(run)
    with pytest.raises(CheckpointError, match="no checkpoint in it; it holds first/"):
        load_parameters(runs, target_on("one").params)
    (tmp_path / "weights.bin").write_text("x")
    with pytest.raises(CheckpointError, match="a file, not a checkpoint folder"):
        load_parameters(tmp_path / "weights.bin", target_on("one").params)


def test_damage_names_the_path_of_the_intact_step(
    tmp_path: Path, state_on: Make, target_on: Make
) -> None:
    with CheckpointStore(tmp_path, keep=-1, asynchronous=False) as store:
        for step in (9, 10):
            store.save(step, state_on("both", step), data_state={}, config={})
    (tmp_path / "10" / "data" / "metadata").write_text("[{}, {}]")
    with pytest.raises(
        DamagedCheckpoint,
        match=rf"data/metadata is not .*step 9 is intact: load_parameters_path={tmp_path}/9 ",
    ):
        load_parameters(tmp_path, target_on("one").params)

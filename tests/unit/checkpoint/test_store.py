import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from maxtext.checkpoint.checksums import json_checksum
from maxtext.checkpoint.errors import CheckpointError, CheckpointMismatch, DamagedCheckpoint
from maxtext.checkpoint.store import CheckpointStore

type Make = Callable[..., Any]

DATA = {"position": 7, "shard": [0, 1]}
CONFIG = {"run_name": "no", "learning_rate": 1e-4, "steps": 40}


def save_steps(directory: Path, state_on: Make, *steps: int, keep: int = -1) -> None:
    with CheckpointStore(directory, keep=keep, asynchronous=True) as store:
        for step in steps:
            assert store.save(step, state_on("both", step), data_state=DATA, config=CONFIG)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("mesh", ["one", "rows", "columns", "both"])
def test_a_step_comes_back_bit_for_bit_on_any_mesh(
    mesh: str, tmp_path: Path, state_on: Make, target_on: Make, require_equal: Make
) -> None:
    save_steps(tmp_path, state_on, 20)
    with CheckpointStore(tmp_path, keep=-1, asynchronous=True) as store:
        restored = store.restore(20, target_on(mesh))
    require_equal(restored.state, state_on("one", 20))
    assert jax.tree.structure(restored.state) == jax.tree.structure(target_on(mesh))
    for got, want in zip(
        jax.tree.leaves(restored.state), jax.tree.leaves(target_on(mesh)), strict=True
    ):
        assert got.sharding == want.sharding
    assert (restored.step, restored.data_states, restored.config) == (20, [DATA], CONFIG)
    assert restored.set_aside == ()


def test_the_config_of_a_step_is_plain_json(tmp_path: Path, state_on: Make) -> None:
    save_steps(tmp_path, state_on, 20)
    assert json.loads((tmp_path / "20" / "config" / "metadata").read_text()) == CONFIG


def test_a_fresh_run_has_no_step_and_writes_nothing(tmp_path: Path, target_on: Make) -> None:
    directory = tmp_path / "run" / "checkpoints"
    with CheckpointStore(directory, keep=3, asynchronous=True) as store:
        assert store.all_steps() == []
        assert store.latest_step() is None
        assert store.restore_newest(target_on("one")) is None
    assert not directory.parent.exists()


def test_a_step_is_saved_once(
    tmp_path: Path, state_on: Make, target_on: Make, require_equal: Make
) -> None:
    with CheckpointStore(tmp_path, keep=-1, asynchronous=True) as store:
        assert store.save(20, state_on("both", 20), data_state=DATA, config=CONFIG)
        assert not store.save(20, state_on("both", 21), data_state={}, config={})
        require_equal(store.restore(20, target_on("both")).state, state_on("one", 20))


def test_a_synchronous_save_is_there_on_return(tmp_path: Path, state_on: Make) -> None:
    with CheckpointStore(tmp_path, keep=1, asynchronous=False) as store:
        for step in (1, 2):
            store.save(step, state_on("both", step), data_state=DATA, config=CONFIG)
            assert store.all_steps() == [step]


def test_only_the_newest_steps_are_kept(tmp_path: Path, state_on: Make) -> None:
    save_steps(tmp_path, state_on, 8, 9, 10, 11, keep=2)
    assert names(tmp_path) == ["10", "11"]


def test_the_best_steps_stay_over_restarts(tmp_path: Path, state_on: Make) -> None:
    losses = {10: 2.0, 20: 1.0, 30: 1.0, 40: float("nan"), 50: None, 60: 3.0}
    for step, loss in losses.items():
        with CheckpointStore(tmp_path, keep=1, keep_best=1, asynchronous=True) as store:
            keys = {"data_state": DATA, "config": CONFIG, "eval_loss": loss}
            store.save(step, state_on("one", step), **keys)
    assert names(tmp_path) == ["20", "60"]
    assert json.loads((tmp_path / "20" / "metrics" / "metadata").read_text()) == {"eval_loss": 1.0}


def test_every_so_many_steps_stay(tmp_path: Path, state_on: Make) -> None:
    with CheckpointStore(tmp_path, keep=1, keep_period=20, asynchronous=True) as store:
        for step in (10, 20, 30, 40, 50):
            store.save(step, state_on("one", step), data_state=DATA, config=CONFIG)
    assert names(tmp_path) == ["20", "40", "50"]


def test_a_store_knows_what_it_wrote_with_a_config(tmp_path: Path, state_on: Make) -> None:
    save_steps(tmp_path, state_on, 20, 40)
    with CheckpointStore(tmp_path, keep=-1, asynchronous=True) as store:
        assert store.wrote(CONFIG, after=20)
        assert not store.wrote(CONFIG, after=40)
        assert not store.wrote(CONFIG | {"steps": 50}, after=20)
        (tmp_path / "40" / "config" / "metadata").write_text("{")
        assert not store.wrote(CONFIG, after=20)


def test_a_step_without_metrics_is_one_of_an_earlier_version(
    tmp_path: Path, state_on: Make, target_on: Make, require_equal: Make
) -> None:
    save_steps(tmp_path, state_on, 20)
    sums = tmp_path / "20" / "checksums" / "metadata"
    values = json.loads(sums.read_text())
    del values["values"]["metrics"]
    values["self"] = json_checksum([values["leaves"], values["values"]])
    sums.write_text(json.dumps(values))
    shutil.rmtree(tmp_path / "20" / "metrics")
    with CheckpointStore(tmp_path, keep=1, keep_best=1, asynchronous=True) as store:
        require_equal(store.restore(20, target_on("one")).state, state_on("one", 20))


def test_a_saved_state_may_be_donated_at_once(
    tmp_path: Path, target_on: Make, state_on: Make, require_equal: Make
) -> None:
    def next_state(state: Any) -> Any:
        return jax.tree.map(lambda x: ~x if x.dtype == bool else x + 1, state)

    step = jax.jit(next_state, donate_argnums=0)
    with CheckpointStore(tmp_path, keep=-1, asynchronous=True) as store:
        state = state_on("both", 20)
        store.save(20, state, data_state=DATA, config=CONFIG)
        for _ in range(5):
            state = step(state)
        restored = store.restore(20, target_on("both")).state
        again = store.restore(20, target_on("both")).state
    require_equal(restored, state_on("one", 20))
    step(again)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(again))


def test_what_a_killed_run_left_is_not_a_step_and_is_removed(
    tmp_path: Path, state_on: Make
) -> None:
    save_steps(tmp_path, state_on, 10)
    for name in ("20.orbax-checkpoint-tmp", "30.orbax-checkpoint-tmp-123", "5.deleting"):
        shutil.copytree(tmp_path / "10", tmp_path / name)
    with CheckpointStore(tmp_path, keep=3, asynchronous=True) as store:
        assert store.all_steps() == [10]
    assert names(tmp_path) == ["10"]


def test_newer_steps_are_set_aside_and_can_be_saved_again(
    tmp_path: Path, state_on: Make, target_on: Make, require_equal: Make
) -> None:
    directory = tmp_path / "checkpoints"
    save_steps(directory, state_on, 20, 40, 60)
    for _ in range(2):
        with CheckpointStore(directory, keep=-1, asynchronous=True) as store:
            assert store.restore(20, target_on("both")).set_aside[:1] == (40,)
            assert store.all_steps() == [20]
            assert store.save(40, state_on("both", 41), data_state=DATA, config=CONFIG)
            require_equal(store.restore(40, target_on("both")).state, state_on("one", 41))
    assert names(tmp_path / "checkpoints_set_aside") == ["40", "40.1", "60"]


def test_newer_steps_that_cannot_be_moved_are_one_error(
    tmp_path: Path, state_on: Make, target_on: Make
) -> None:
    directory = tmp_path / "checkpoints"
    save_steps(directory, state_on, 20, 40)
    (tmp_path / "checkpoints_set_aside").write_text("")
    with (
        CheckpointStore(directory, keep=-1, asynchronous=True) as store,
        pytest.raises(CheckpointError, match=r"newer steps cannot be moved to .*: File exists"),
    ):
        store.restore(20, target_on("one"))
    assert names(directory) == ["20", "40"]


def test_links_and_files_in_the_place_of_steps_are_deleted_alone(
    tmp_path: Path, state_on: Make
) -> None:
    directory, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    save_steps(elsewhere, state_on, 20)
    directory.mkdir()
    (directory / "20").symlink_to(elsewhere / "20")
    (directory / "30.orbax-checkpoint-tmp").write_text("")
    save_steps(directory, state_on, 40, keep=1)
    assert names(directory) == ["40"]
    assert names(elsewhere) == ["20"]


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path, state_on: Make) -> None:
    unfinished = tmp_path / "40.orbax-checkpoint-tmp"
    with CheckpointStore(tmp_path, keep=1, asynchronous=True) as store:
        unfinished.mkdir()
        with pytest.raises(CheckpointError, match=r"another process writes to .* run_name"):
            CheckpointStore(tmp_path, keep=1, asynchronous=True)
        assert unfinished.is_dir(), "what the other one writes is left alone"
        assert store.save(20, state_on("one", 20), data_state=DATA, config=CONFIG)
    save_steps(tmp_path, state_on, 40, keep=1)
    assert names(tmp_path) == ["40"]


def test_two_new_runs_do_not_write_to_one_folder(tmp_path: Path, state_on: Make) -> None:
    keys = {"data_state": DATA, "config": CONFIG}
    first = CheckpointStore(tmp_path / "new", keep=1, asynchronous=True)
    with first, CheckpointStore(tmp_path / "new", keep=1, asynchronous=True) as second:
        first.save(20, state_on("one", 20), **keys)
        with pytest.raises(CheckpointError, match="another process writes to"):
            second.save(30, state_on("one", 30), **keys)
    assert names(tmp_path / "new") == ["20"]


def test_a_step_that_does_not_exist_is_refused_with_those_that_do(
    tmp_path: Path, state_on: Make, target_on: Make
) -> None:
    save_steps(tmp_path, state_on, 20, 40)
    with (
        CheckpointStore(tmp_path, keep=-1, asynchronous=True) as store,
        pytest.raises(CheckpointError, match=r"restore_step=30: no such step in .*are 20, 40"),
    ):
        store.restore(30, target_on("one"))


def test_another_models_checkpoint_is_refused_before_it_is_read(
    tmp_path: Path, state_on: Make, target_on: Make
) -> None:
    save_steps(tmp_path, state_on, 20)
    shutil.rmtree(tmp_path / "20" / "state")  # nothing to read
    with (
        CheckpointStore(tmp_path, keep=-1, asynchronous=True) as store,
        pytest.raises(CheckpointMismatch) as caught,
    ):
        store.restore(20, target_on("both", 24))
    assert "3 of 9 arrays differ" in str(caught.value)
    for name in ("params/kernel", "opt_state/0/mu/kernel", "opt_state/0/nu/kernel"):
        assert f"checkpoint has {name} float32[8,16], this run wants float32[8,24]" in str(
            caught.value
        )


def files_of(step: Path) -> list[Path]:
    """Every file whose loss matters, largest first."""
    found = [path for path in step.rglob("*") if path.is_file() and path.stat().st_size]
    return sorted(found, key=lambda path: -path.stat().st_size)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: os.truncate(path, 0),
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "flipped": lambda path: path.write_bytes(
        bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_step_is_named_with_the_newest_intact_one(
    damage: str,
    tmp_path: Path,
    state_on: Make,
    target_on: Make,
    require_equal: Make,
    capfd: pytest.CaptureFixture[str],
) -> None:
    save_steps(tmp_path, state_on, 20, 40)
    whole = tmp_path.parent / f"{tmp_path.name}_whole"
    shutil.copytree(tmp_path / "40", whole)
    found = 0
    for file in files_of(tmp_path / "40"):
        DAMAGES[damage](file)
        with CheckpointStore(tmp_path, keep=-1, asynchronous=True) as store:
            try:
                restored = store.restore_newest(target_on("both"))
            except DamagedCheckpoint as error:
                found += 1
                message = str(error)
                assert message.startswith(f"checkpoint step 40 in {tmp_path} is damaged (")
                assert message.endswith("; step 20 is intact: restore_step=20 resumes from it")
                assert "\n" not in message
                assert len(message) < 400
            else:  # a file that nothing depends on
                require_equal(restored.state, state_on("one", 40))
                assert (restored.data_states, restored.config) == ([DATA], CONFIG)
            assert store.all_steps() == [20, 40]
        shutil.rmtree(tmp_path / "40")
        shutil.copytree(whole, tmp_path / "40")
    # Three of JSON, the manifest, and the arrays.
    assert found >= 5
    assert capfd.readouterr() == ("", "")


def test_the_intact_step_is_one_that_was_read(
    tmp_path: Path, state_on: Make, target_on: Make
) -> None:
    save_steps(tmp_path, state_on, 10, 20, 30)
    for step in (20, 30):
        (tmp_path / str(step) / "state" / "manifest.ocdbt").unlink()
    with CheckpointStore(tmp_path, keep=-1, asynchronous=True) as store:
        with pytest.raises(
            DamagedCheckpoint, match=r"step 30 .*; step 10 is intact: restore_step=10"
        ):
            store.restore_newest(target_on("both"))
        shutil.rmtree(tmp_path / "10")
        with pytest.raises(DamagedCheckpoint, match=r"step 30 .*; so are the others \(20\)"):
            store.restore_newest(target_on("both"))
        shutil.rmtree(tmp_path / "20")
        with pytest.raises(DamagedCheckpoint, match=r"step 30 .*; there is no other step"):
            store.restore_newest(target_on("both"))


def test_the_places_of_other_processes_are_there_too(
    tmp_path: Path, state_on: Make, target_on: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maxtext.checkpoint.store._gather", lambda state: [state, {"at": 1}])
    save_steps(tmp_path, state_on, 20)
    with CheckpointStore(tmp_path, keep=-1, asynchronous=True) as store:
        assert store.restore(20, target_on("both")).data_states == [DATA, {"at": 1}]


def test_a_folder_that_cannot_be_written_is_one_error(
    tmp_path: Path, state_on: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoints").write_text("a file in the way")
    with CheckpointStore(tmp_path / "checkpoints", keep=-1, asynchronous=True) as store:
        with pytest.raises(CheckpointError, match=r"step 1 could not be written to .*checkpoints"):  # noqa: PT012
            store.save(1, state_on("both", 1), data_state=DATA, config=CONFIG)
            store.wait()
        store.wait()
    assert capfd.readouterr() == ("", "")


def test_a_folder_removed_while_running_is_made_again(
    tmp_path: Path, state_on: Make, target_on: Make, require_equal: Make
) -> None:
    directory = tmp_path / "checkpoints"
    with CheckpointStore(directory, keep=-1, asynchronous=True) as store:
        store.save(1, state_on("both", 1), data_state=DATA, config=CONFIG)
        store.wait()
        shutil.rmtree(directory)
        store.save(2, state_on("both", 2), data_state=DATA, config=CONFIG)
        require_equal(store.restore_newest(target_on("both")).state, state_on("one", 2))

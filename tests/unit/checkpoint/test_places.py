"""Steps in two places: the local one first, as a run gives them."""

import contextlib
import logging
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from maxtext.checkpoint.errors import CheckpointError
from maxtext.checkpoint.places import require_shared, restore_from
from maxtext.checkpoint.store import CheckpointStore

type Make = Callable[..., Any]


@contextlib.contextmanager
def stores(folder: Path) -> Generator[list[CheckpointStore]]:
    with (
        CheckpointStore(folder / "local", keep=-1, asynchronous=False) as local,
        CheckpointStore(folder / "own", keep=-1, asynchronous=False) as own,
    ):
        yield [local, own]


@pytest.fixture
def save(tmp_path: Path, state_on: Make) -> Callable[..., None]:
    def save(place: str, *steps: int) -> None:
        with CheckpointStore(tmp_path / place, keep=-1, asynchronous=False) as store:
            for step in steps:
                data = {"from": place, "at": step}
                store.save(step, state_on("one", step), data_state=data, config={})

    return save


def damage(step: Path) -> None:
    (step / "state" / "manifest.ocdbt").unlink()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(
    ("local", "own", "want"),
    [
        ((50,), (20, 40), ("local", 50)),
        ((30,), (20, 40), ("own", 40)),
        ((40,), (20, 40), ("local", 40)),
        ((), (20, 40), ("own", 40)),
        ((10,), (), ("local", 10)),
    ],
)
def test_the_newest_step_of_both_counts(local, own, want, tmp_path, save, target_on) -> None:
    save("local", *local)
    save("own", *own)
    with stores(tmp_path) as both:
        restored = restore_from(both, target_on("rows"))
    assert (restored.data_states[0]["from"], restored.step) == want
    assert restored.set_aside == ()


def test_two_empty_places_hold_nothing(tmp_path, target_on) -> None:
    with stores(tmp_path) as both:
        assert restore_from(both, target_on("one")) is None


@pytest.mark.parametrize(
    ("damaged", "want"),
    [
        (["local/50"], ("own", 40)),
        (["local/50", "own/40"], ("local", 30)),
        (["own/40"], ("local", 50)),
    ],
)
def test_damage_in_one_place_falls_back_to_the_newest_intact_step(
    damaged, want, tmp_path, save, target_on, caplog
) -> None:
    caplog.set_level(logging.INFO, logger="maxtext")
    save("local", 30, 50)
    save("own", 20, 40)
    for name in damaged:
        damage(tmp_path / name)
    aside = tuple(step for step in (40, 50) if step > want[1])
    with stores(tmp_path) as both:
        restored = restore_from(both, target_on("one"))
        assert (restored.data_states[0]["from"], restored.step) == want
        assert restored.set_aside == aside
        assert all(step <= restored.step for store in both for step in store.all_steps())
    assert len(caplog.messages) == len(aside)
    for message in caplog.messages:
        assert message.endswith("; looking for another one")
        assert "is damaged (" in message


def test_a_damaged_copy_of_the_step_that_is_taken_is_set_aside(tmp_path, save, target_on) -> None:
    save("local", 40)
    save("own", 20, 40)
    damage(tmp_path / "local" / "40")
    with stores(tmp_path) as both:
        assert restore_from(both, target_on("one")).data_states[0]["from"] == "own"
    assert names(tmp_path / "local") == []
    assert names(tmp_path / "local_set_aside") == ["40"]
    assert names(tmp_path / "own") == ["20", "40"]


def test_one_step_is_asked_for_in_both_places(tmp_path, save, target_on) -> None:
    save("local", 30, 50)
    save("own", 20, 40)
    with stores(tmp_path) as both:
        with pytest.raises(CheckpointError, match="restore_step=35: no such step"):
            restore_from(both, target_on("one"), step=35)
        restored = restore_from(both, target_on("one"), step=20)
    assert (restored.step, restored.set_aside) == (20, (30, 40, 50))
    assert names(tmp_path / "local_set_aside") == ["30", "50"]
    assert names(tmp_path / "own_set_aside") == ["40"]


def test_no_intact_step_is_one_error_and_moves_nothing(tmp_path, save, target_on) -> None:
    save("local", 30)
    save("own", 20)
    for name in ("local/30", "own/20"):
        damage(tmp_path / name)
    with stores(tmp_path) as both, pytest.raises(CheckpointError, match="no checkpoint is intact"):
        restore_from(both, target_on("one"))
    assert names(tmp_path) == ["local", "own"]


def test_a_local_folder_that_cannot_be_made_is_one_error(tmp_path) -> None:
    require_shared(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"local_checkpoint_directory: .*Not a directory"):
        require_shared(tmp_path / "file" / "b")

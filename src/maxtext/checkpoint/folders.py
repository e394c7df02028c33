"""What a folder of steps holds, as far as that is plain JSON; folders that are written whole."""

import contextlib
import json
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

from maxtext.checkpoint.errors import DamagedCheckpoint, brief

# What the names of weights begin with among the arrays of a step.
WEIGHTS = "params/"
# The place in the data is one of each process; all else is an object.
_LISTS = ("data",)


def list_steps(directory: Path) -> list[int]:
    """The committed steps of a folder, oldest first; none if there is no such folder."""
    if not directory.is_dir():
        return []
    names = (entry.name for entry in directory.iterdir() if entry.is_dir())
    return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))


def read_item(step: Path, item: str) -> Any:
    """The JSON value `item` of a step: an object or a list, whose content is not checked.

    Raises:
        DamagedCheckpoint: It is missing or no such value.
    """
    try:
        value = json.loads((step / item / "metadata").read_text("utf-8"))
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{item}/metadata is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{item}/metadata cannot be read: {brief(error)}") from error
    if not isinstance(value, list if item in _LISTS else dict):
        raise DamagedCheckpoint(f"{item}/metadata is not what was written")
    return value


@contextlib.contextmanager
def whole_folder(target: Path, *, partial: str) -> Generator[Path]:
    """A folder that gets the name `target` when the block ends well, and is deleted if not.

    Args:
        target: Its parents are made where they are missing, and deleted likewise.
        partial: The folder's name until then; one that a killed process left is deleted.

    Raises:
        OSError: It cannot be written.
    """
    made = target.absolute().with_name(partial)
    missing = [folder for folder in made.parents if not folder.exists()]
    try:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        yield made
        made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        for folder in missing:
            # What holds something stays.
            with contextlib.suppress(OSError):
                folder.rmdir()


def read_eval_loss(step: Path) -> float | None:
    """The evaluation loss of a step; None where it was not evaluated or cannot be read."""
    try:
        loss = read_item(step, "metrics").get("eval_loss")
    except DamagedCheckpoint:
        return None
    return loss if isinstance(loss, float) else None

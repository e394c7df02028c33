"""What a folder of steps holds, as far as that is plain JSON: read without JAX."""

import json
from pathlib import Path
from typing import Any

from maxtext.checkpoint.errors import DamagedCheckpoint, brief

# What the names of weights begin with among the arrays of a step.
WEIGHTS = "params/"


def list_steps(directory: Path) -> list[int]:
    """The committed steps of a folder, oldest first; none if there is no such folder."""
    if not directory.is_dir():
        return []
    names = (entry.name for entry in directory.iterdir() if entry.is_dir())
    return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))


def read_item(step: Path, item: str) -> Any:
    """The JSON value `item` of a step, not checked.

    Raises:
        DamagedCheckpoint: It is missing or no JSON.
    """
    try:
        return json.loads((step / item / "metadata").read_text("utf-8"))
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{item}/metadata is missing") from error
    except (OSError, ValueError) as error:
        raise DamagedCheckpoint(f"{item}/metadata cannot be read: {brief(error)}") from error


def read_eval_loss(step: Path) -> float | None:
    """The evaluation loss of a step; None where it was not evaluated or cannot be read."""
    try:
        values = read_item(step, "metrics")
    except DamagedCheckpoint:
        return None
    loss = values.get("eval_loss") if isinstance(values, dict) else None
    return loss if isinstance(loss, float) else None

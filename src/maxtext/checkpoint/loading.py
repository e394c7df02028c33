"""What a new run starts from: a checkpoint of another run, given by a path."""

import os
from pathlib import Path

from maxtext.checkpoint.errors import CheckpointError
from maxtext.checkpoint.folders import WEIGHTS, list_steps
from maxtext.checkpoint.reading import Restored, Source, read, restored

_MAX_NAMES = 10


def _contents(folder: Path) -> str:
    names = sorted(f"{one.name}/" if one.is_dir() else one.name for one in folder.iterdir())
    if not names:
        return "it is empty"
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"it holds {', '.join(names[:_MAX_NAMES])}{more}"


def find_source(path: str | Path, key: str) -> Source:
    """The step that a path means: itself, or the newest in a folder of steps or of a run.

    Args:
        path: As the user gave it.
        key: What it was given as.

    Raises:
        CheckpointError: There is none.
    """
    place = Path(os.path.expanduser(path)).absolute()
    how = f"{key}={{directory}}/{{step}} reads it"
    if not place.is_dir():
        kind = "a file, not a checkpoint folder" if place.exists() else "no such folder"
        nearest = next(parent for parent in place.parents if parent.is_dir())
        raise CheckpointError(f"{key}={path}: {kind}; of {nearest}: {_contents(nearest)}")
    if place.name.isdecimal() and (place / "state").exists():
        return Source(place.parent, int(place.name), how)
    for directory in (place, place / "checkpoints"):
        steps = list_steps(directory)
        if steps:
            return Source(directory, steps[-1], how)
    raise CheckpointError(
        f"{key}={path}: no checkpoint in it; {_contents(place)}. Give a run's folder, its "
        f"checkpoints folder, or one step in that"
    )


def load_parameters[T](path: str | Path, target: T) -> T:
    """The weights in a step, a folder of steps, or a run's folder, of which the newest counts.

    Args:
        path: The folder, as given by `load_parameters_path`.
        target: Weights as a tree of `jax.ShapeDtypeStruct` with shardings on any mesh. Those of
            float32 may be read from 16 bits.

    Raises:
        CheckpointMismatch: Weights are missing, left over, or of other shapes or types.
        DamagedCheckpoint: Files are missing, cut off or changed; says which step is intact.
        CheckpointError: There is no checkpoint at this path.
    """
    params, _ = read(find_source(path, "load_parameters_path"), target, prefix=WEIGHTS, widen=True)
    return params


def load_full_state[T](path: str | Path, target: T) -> Restored[T]:
    """Everything in the step that `path` means, as given by `load_full_state_path`.

    Raises as `load_parameters`.
    """
    return restored(find_source(path, "load_full_state_path"), target)

"""Steps read back: strictly matched before an array is read, and checked bit for bit after."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from maxtext.checkpoint.checksums import array_checksums, json_checksum
from maxtext.checkpoint.errors import (
    CheckpointMismatch,
    DamagedCheckpoint,
    brief,
)
from maxtext.checkpoint.files import read_arrays
from maxtext.checkpoint.folders import list_steps, read_item
from maxtext.checkpoint.matching import require_match
from maxtext.parallel.distributed import gather
from maxtext.parallel.params import named_leaves

_WITHIN_FLOAT32 = ("bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Restored[T]:
    """What a step held.

    Attributes:
        step: Its number.
        state: The tree of the target, as arrays.
        data_states: The place in the data of each process that wrote it.
        config: The resolved config of the run that wrote it, flat.
        set_aside: Newer steps that were moved out of the way.
    """

    step: int
    state: T
    data_states: list[dict[str, Any]]
    config: dict[str, Any]
    set_aside: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Source:
    """A step to read, and how the user says which.

    Attributes:
        directory: The folder of steps.
        step: The step in it.
        other_step: What to type to take another step, with `{step}` and `{directory}` in it; empty
            where no advice is wanted.
    """

    directory: Path
    step: int
    other_step: str

    @property
    def folder(self) -> Path:
        """The folder of this step."""
        return self.directory / str(self.step)

    def __str__(self) -> str:
        return f"checkpoint step {self.step} in {self.directory}"


def _read_values(folder: Path) -> dict[str, Any]:
    """The JSON values of a step, checked. Raises DamagedCheckpoint with the reason alone."""
    sums = read_item(folder, "checksums")
    # The sum of the sums first: what follows may then trust their form.
    if sums.keys() != {"leaves", "values", "self"}:
        raise DamagedCheckpoint("checksums/metadata is not what was written")
    if json_checksum([sums["leaves"], sums["values"]]) != sums["self"]:
        raise DamagedCheckpoint("checksums/metadata is not what was written")
    values = {"checksums": sums}
    for item, want in sums["values"].items():
        values[item] = read_item(folder, item)
        if json_checksum(values[item]) != want:
            raise DamagedCheckpoint(f"{item}/metadata is not what was written")
    return values


def _read_leaves(folder: Path, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """The arrays, read but not checked; every process raises when one of them cannot read."""
    arrays: dict[str, jax.Array] = {}
    problem = ""
    try:
        arrays = read_arrays(folder, wanted)
    except (OSError, ValueError) as error:
        problem = brief(error)
    failed = np.flatnonzero(gather(int(problem != "")))
    problem = problem or (f"process {failed[0]} cannot read it" if failed.size else "")
    if problem:
        raise DamagedCheckpoint(problem)
    return arrays


def read_values(folder: Path, *, where: str) -> dict[str, Any]:
    """The JSON values of a step, checked.

    Args:
        folder: The step's.
        where: The step, as the user reads it.

    Raises:
        DamagedCheckpoint: They are missing or changed.
    """
    try:
        return _read_values(folder)
    except DamagedCheckpoint as error:
        raise DamagedCheckpoint(f"{where} is damaged ({error})") from error


def _as_saved(leaf: jax.ShapeDtypeStruct, saved: Mapping[str, Any] | None) -> jax.ShapeDtypeStruct:
    """The leaf in the type on disk, where the leaf's own holds all of its numbers."""
    if saved is None or leaf.dtype != np.float32 or saved["dtype"] not in _WITHIN_FLOAT32:
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, saved["dtype"], sharding=leaf.sharding)


def _read[T](source: Source, target: T, prefix: str, *, widen: bool) -> tuple[T, dict[str, Any]]:
    """The target's arrays and the JSON values of a step, all checked."""
    targets = {prefix + name: leaf for name, leaf in named_leaves(target).items()}
    values = _read_values(source.folder)
    saved = values["checksums"]["leaves"]
    wanted = targets
    if widen:
        wanted = {name: _as_saved(leaf, saved.get(name)) for name, leaf in targets.items()}
    require_match(
        {name: leaf for name, leaf in saved.items() if name.startswith(prefix)},
        wanted,
        where=str(source),
    )
    arrays = _read_leaves(source.folder, wanted)
    sums = array_checksums(arrays)
    wrong = [name for name in wanted if sums[name] != saved[name]["checksum"]]
    if wrong:
        rest = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise DamagedCheckpoint(f"{wrong[0]}{rest} is not what was written")
    leaves = [arrays.pop(name).astype(leaf.dtype) for name, leaf in targets.items()]
    return jax.tree.unflatten(jax.tree.structure(target), leaves), values


def _is_intact(source: Source, target: object, prefix: str, *, widen: bool) -> bool:
    try:
        _read(source, target, prefix, widen=widen)
    except (DamagedCheckpoint, CheckpointMismatch):
        return False
    return True


def _advice(source: Source, target: object, prefix: str, *, widen: bool) -> str:
    """Which other step to take, found by reading them, the newest first."""
    others = [step for step in reversed(list_steps(source.directory)) if step != source.step]
    for step in others:
        other = dataclasses.replace(source, step=step)
        if _is_intact(other, target, prefix, widen=widen):
            how = source.other_step.format(step=step, directory=source.directory)
            return f"step {step} is intact: {how}"
    if others:
        return f"so are the others ({', '.join(map(str, others))})"
    return "there is no other step"


def read[T](
    source: Source, target: T, *, prefix: str = "", widen: bool = False
) -> tuple[T, dict[str, Any]]:
    """The target's arrays and the JSON values of a step.

    Args:
        source: The step.
        target: A tree of `jax.ShapeDtypeStruct` with shardings on any mesh.
        prefix: What the names of the target's leaves start with in the checkpoint; leaves under
            other names are not read.
        widen: Take 16-bit numbers where float32 is wanted, which loses nothing.

    Raises:
        CheckpointMismatch: Leaves are missing, left over, or of other shapes or types.
        DamagedCheckpoint: Files are missing, cut off or changed; says which step is intact.
    """
    try:
        return _read(source, target, prefix, widen=widen)
    except DamagedCheckpoint as error:
        # Kept as text, so that no traceback keeps the arrays alive while other steps are read.
        reason = str(error)
    advice = f"; {_advice(source, target, prefix, widen=widen)}" if source.other_step else ""
    raise DamagedCheckpoint(f"{source} is damaged ({reason}){advice}")


def restored[T](source: Source, target: T) -> Restored[T]:
    """Everything in a step; raises as `read`."""
    state, values = read(source, target)
    return Restored(source.step, state, values["data"], values["config"])

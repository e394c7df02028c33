"""The checkpoints of one run: when a step counts as there, what is kept, what is moved away."""

import contextlib
import dataclasses
import fcntl
import itertools
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
from jax.experimental import multihost_utils

from maxtext.checkpoint.checksums import array_checksums, sealed_values
from maxtext.checkpoint.errors import CheckpointError, DamagedCheckpoint, brief
from maxtext.checkpoint.files import StepWriter
from maxtext.checkpoint.folders import list_steps, read_eval_loss, read_item
from maxtext.checkpoint.reading import Restored, Source, restored
from maxtext.checkpoint.retention import Retention
from maxtext.parallel.distributed import together
from maxtext.parallel.params import named_leaves

_DELETING = ".deleting"
_UNFINISHED = ("*.orbax-checkpoint-tmp*", f"*{_DELETING}")


def _gather(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The JSON value of every process."""
    text = json.dumps(value).encode()
    if jax.process_count() == 1:
        return [json.loads(text)]
    sizes = np.ravel(multihost_utils.process_allgather(np.int32(len(text))))
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: len(text)] = np.frombuffer(text, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def _checked_values(arrays: Mapping[str, jax.Array], values: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON values of a step, and the checksums of all that it holds."""
    sums = array_checksums(arrays)
    leaves = {
        name: {"dtype": str(x.dtype), "shape": list(x.shape), "checksum": sums[name]}
        for name, x in arrays.items()
    }
    return sealed_values(leaves, values)


class CheckpointStore:
    """The folder `<run>/checkpoints`.

    A step is there once its folder has its plain number as name; until then, and while it is
    deleted, it has another. Every process of a run makes one and calls the same methods.

    Args:
        directory: The folder; made by the first save. What an interrupted run left unfinished in
            it is deleted now.
        keep: Newest steps to keep; -1: all.
        keep_period: Steps that are a multiple of it are kept too; -1: none.
        keep_best: Steps of lowest evaluation loss that are kept too.
        asynchronous: Write while the caller goes on.

    Raises:
        CheckpointError: The folder cannot be read or cleaned up, or another run writes to it.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        keep: int,
        asynchronous: bool,
        keep_period: int = -1,
        keep_best: int = 0,
    ) -> None:
        self._directory = Path(directory).absolute()
        self._retention = Retention(keep, keep_period, keep_best)
        self._asynchronous = asynchronous
        self._writer = StepWriter()
        self._background = ThreadPoolExecutor(1, "checkpoint")
        self._pending: tuple[int, Future[None]] | None = None
        self._lock: int | None = None
        with together():
            try:
                if self._directory.exists():
                    self._take()
                self._remove_unfinished()
            except OSError as error:
                raise CheckpointError(f"cannot use {self._directory}: {brief(error)}") from error

    def all_steps(self) -> list[int]:
        """The committed steps, oldest first."""
        return list_steps(self._directory)

    def latest_step(self) -> int | None:
        """The newest committed step, intact or not; None without one."""
        return max(self.all_steps(), default=None)

    def wrote(self, config: Mapping[str, Any], *, after: int) -> bool:
        """Whether the newest step is one after `after`, saved with this very config."""
        newest = self.latest_step()
        if newest is None or newest <= after:
            return False
        try:
            stored = read_item(self._directory / str(newest), "config")
        except DamagedCheckpoint:
            return False
        return stored == json.loads(json.dumps(config))

    def save(
        self,
        step: int,
        state: object,
        *,
        data_state: dict[str, Any],
        config: Mapping[str, Any],
        eval_loss: float | None = None,
    ) -> bool:
        """Whether a write of this step was started: not if the step is there already.

        On return the arrays of `state` may be donated.

        Args:
            step: Its number.
            state: A tree of arrays, of which any may be sharded.
            data_state: This process's place in the data, as JSON.
            config: The resolved config, flat, as JSON.
            eval_loss: Of the evaluation after this step, where there was one.

        Raises:
            CheckpointError: This write cannot start, or an earlier one failed.
        """
        self.wait()
        if step in self.all_steps():
            return False
        arrays = named_leaves(state)
        known = eval_loss is not None and math.isfinite(eval_loss)
        metrics = {"eval_loss": eval_loss if known else None}
        values = {"data": _gather(data_state), "config": config, "metrics": metrics}
        values = _checked_values(arrays, values)
        try:
            with together():
                self._require_writable()
            self._writer.start(self._directory / str(step), arrays, values)
        except CheckpointError:
            # The folder is another run's, and so is what lies unfinished in it.
            raise
        except Exception as error:
            raise self._write_error(step, error) from error
        self._pending = step, self._background.submit(self._commit)
        if not self._asynchronous:
            self.wait()
        return True

    def wait(self) -> None:
        """Returns once the last save is committed and old steps are deleted.

        Raises:
            CheckpointError: The write failed; once.
        """
        if self._pending is None:
            return
        step, written = self._pending
        self._pending = None
        try:
            written.result()
        except Exception as error:
            raise self._write_error(step, error) from error

    def restore[T](self, step: int, target: T) -> Restored[T]:
        """What a step holds; newer steps are then moved to `<directory>_set_aside`.

        Args:
            step: Its number.
            target: The state as a tree of `jax.ShapeDtypeStruct` with shardings on any mesh.

        Raises:
            CheckpointMismatch: Leaves are missing, left over, or of other shapes or types.
            DamagedCheckpoint: Files are missing, cut off or changed; says which step is intact.
            CheckpointError: There is no such step.
        """
        self.wait()
        steps = self.all_steps()
        if step not in steps:
            there = f"there are {', '.join(map(str, steps))}" if steps else "there is none"
            raise CheckpointError(
                f"restore_step={step}: no such step in {self._directory}; {there}"
            )
        how = "restore_step={step} resumes from it"
        found = restored(Source(self._directory, step, how), target)
        newer = tuple(one for one in steps if one > step)
        self.set_aside(newer)
        return dataclasses.replace(found, set_aside=newer)

    def read[T](self, step: int, target: T) -> Restored[T]:
        """As `restore`, but no step is moved and a damaged one brings no advice."""
        self.wait()
        return restored(Source(self._directory, step, ""), target)

    def restore_newest[T](self, target: T) -> Restored[T] | None:
        """What the newest step holds, None without one; raises as `restore`."""
        self.wait()
        step = self.latest_step()
        return None if step is None else self.restore(step, target)

    def set_aside(self, steps: Sequence[int]) -> None:
        """Moves steps to `<directory>_set_aside`; every process must call it.

        Raises:
            CheckpointError: They cannot be moved.
        """
        if not steps:
            return
        if jax.process_count() > 1:  # no process may still read what is moved
            multihost_utils.sync_global_devices("before steps are set aside")
        with together():
            if jax.process_index() == 0:
                aside = self._directory.with_name(f"{self._directory.name}_set_aside")
                try:
                    aside.mkdir(exist_ok=True)
                    for step in steps:
                        (self._directory / str(step)).rename(_free_name(aside, str(step)))
                except OSError as error:
                    message = f"newer steps cannot be moved to {aside}: {brief(error)}"
                    raise CheckpointError(message) from error

    def close(self) -> None:
        """Waits, and ends the threads. Raises as `wait`."""
        try:
            self.wait()
        finally:
            self._background.shutdown()
            self._writer.close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _require_writable(self) -> None:
        # Asked first: a save that fails at its start makes Orbax write warnings to stderr.
        self._directory.mkdir(parents=True, exist_ok=True)
        if not os.access(self._directory, os.W_OK | os.X_OK):
            raise PermissionError("no permission to write")
        self._take()

    def _take(self) -> None:
        """Makes the folder this run's alone, until it is closed or its process ends.

        Raises:
            CheckpointError: It is another one's.
        """
        if self._lock is not None or jax.process_index() > 0:
            return
        folder = os.open(self._directory, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(folder)
            raise CheckpointError(
                f"another process writes to {self._directory}; end it, or choose another run_name"
            ) from error
        except OSError:  # some network file systems have no locks
            os.close(folder)
        else:
            self._lock = folder

    def _commit(self) -> None:
        """Waits for the step's final name, and only then deletes old ones."""
        self._writer.wait()
        if jax.process_index() == 0:
            folders = {step: self._directory / str(step) for step in self.all_steps()}
            by_loss = self._retention.best > 0
            losses = {
                step: read_eval_loss(folder) if by_loss else None
                for step, folder in folders.items()
            }
            for step in self._retention.doomed(losses):
                # Renamed first: a run killed meanwhile leaves no half step under its number.
                doomed = self._directory / f"{step}{_DELETING}"
                folders[step].rename(doomed)
                _delete(doomed)

    def _remove_unfinished(self) -> None:
        if jax.process_index() == 0 and self._directory.exists():
            for pattern in _UNFINISHED:
                for folder in self._directory.glob(pattern):
                    _delete(folder)

    def _write_error(self, step: int, error: Exception) -> CheckpointError:
        with contextlib.suppress(OSError):  # the write error matters; the next start cleans up
            self._remove_unfinished()
        steps = self.all_steps()
        newest = f"the newest one there is step {steps[-1]}" if steps else "there is none yet"
        return CheckpointError(
            f"checkpoint step {step} could not be written to {self._directory} ({brief(error)}); "
            f"{newest}"
        )


def _delete(path: Path) -> None:
    """Deletes a folder, or a link to one or a file that somebody put in its place."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


def _free_name(folder: Path, name: str) -> Path:
    names = (folder / (f"{name}.{n}" if n else name) for n in itertools.count())
    return next(path for path in names if not path.exists())

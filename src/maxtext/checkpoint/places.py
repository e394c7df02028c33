"""A run's steps in several places: whichever is newest and intact counts."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import jax

from maxtext.checkpoint.errors import CheckpointError, DamagedCheckpoint, brief
from maxtext.checkpoint.reading import Restored
from maxtext.checkpoint.store import CheckpointStore
from maxtext.parallel.distributed import gather, together

_LOCAL = "local_checkpoint_directory: "
_logger = logging.getLogger(__name__)


def restore_from[T](
    stores: Sequence[CheckpointStore], target: T, *, step: int | None = None
) -> Restored[T] | None:
    """What the newest step in any of the stores holds, or `step`; None without any.

    Newer steps are set aside, in all of them. With one store this is its `restore`; with more, a
    damaged step is reported and set aside, and the next newest one is taken.

    Args:
        stores: The one to prefer where two hold the same step comes first, the run's own last.
        target: As for `CheckpointStore.restore`.
        step: Take this one, wherever it is.

    Raises:
        CheckpointError: As `CheckpointStore.restore`, where no store has the step intact.
    """
    if len(stores) == 1:
        return stores[0].restore_newest(target) if step is None else stores[0].restore(step, target)
    found = [(one, store) for store in stores for one in store.all_steps()]
    wanted = [place for place in found if step in (None, place[0])]
    if not wanted:
        return None if step is None else stores[-1].restore(step, target)
    wanted.sort(key=lambda place: -place[0])
    damaged: list[tuple[int, CheckpointStore]] = []
    for one, store in wanted:
        try:
            restored = store.read(one, target)
        except DamagedCheckpoint as error:
            _logger.info("%s; looking for another one", error)
            damaged.append((one, store))
            continue
        aside = [place for place in found if place[0] > one or place in damaged]
        for each in stores:
            each.set_aside([number for number, where in aside if where is each])
        return dataclasses.replace(restored, set_aside=tuple(sorted({n for n, _ in aside})))
    raise CheckpointError(
        f"no checkpoint is intact: {len(damaged)} were read, as the lines above say; move them "
        "away to start anew"
    )


def require_shared(directory: Path) -> None:
    """Makes a folder that every process has to see; each of them must call it.

    Raises:
        CheckpointError: It cannot be made, or another process does not see it.
    """
    with together():
        if jax.process_index() == 0:
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CheckpointError(f"{_LOCAL}{directory}: {brief(error)}") from error
    seen = gather(int(directory.is_dir()))
    if not seen.all():
        where = f"process {seen.argmin()} does not see it"
        raise CheckpointError(f"{_LOCAL}{directory}: {where}; use a folder that all of them share")

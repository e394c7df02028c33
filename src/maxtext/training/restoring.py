"""The state that a run starts from: its own checkpoints, another run's, or random weights."""

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maxtext.checkpoint.loading import load_full_state
from maxtext.checkpoint.places import require_shared, restore_from
from maxtext.checkpoint.store import CheckpointStore
from maxtext.config.flat import flatten
from maxtext.conversion.loading import load_weights
from maxtext.data.batch import State
from maxtext.metrics.goodput import Goodput
from maxtext.optim.schedules import schedule_length
from maxtext.training.progress import still
from maxtext.training.setup import Setup
from maxtext.training.state import TrainState, fresh_state, state_from_params

_logger = logging.getLogger(__name__)


def open_stores(
    setup: Setup, stack: contextlib.ExitStack
) -> tuple[CheckpointStore | None, CheckpointStore | None]:
    """The run's checkpoints, and those on a faster disk, where the config wants any."""
    config = setup.config.checkpoint
    if not config.enable_checkpointing:
        return None, None
    store = stack.enter_context(
        CheckpointStore(
            setup.directory / "checkpoints",
            keep=config.max_num_checkpoints_to_keep,
            keep_period=config.checkpoint_keep_period,
            keep_best=config.num_best_checkpoints_to_keep,
            asynchronous=config.async_checkpointing,
        )
    )
    if not config.local_checkpoint_directory:
        return store, None
    directory = Path(os.path.expanduser(config.local_checkpoint_directory)) / setup.directory.name
    require_shared(directory)
    return store, stack.enter_context(
        CheckpointStore(directory, keep=1, asynchronous=config.async_checkpointing)
    )


def starting_state(
    setup: Setup,
    store: CheckpointStore | None,
    local_store: CheckpointStore | None,
    *,
    goodput: Goodput,
) -> tuple[TrainState, list[State] | None]:
    """The state, and the places of all processes in the data where they are known.

    The run's own checkpoints come first, then the path that the config gives, then random
    weights.

    Raises:
        CheckpointError: A checkpoint is damaged, or of another model.
    """
    with goodput.during("checkpoint"), still("reading the checkpoint"):
        stores = [one for one in (local_store, store) if one is not None]
        restored = _resumed(setup, stores) or _loaded(setup)
    if restored is not None:
        return restored
    seed = setup.config.training.init_weights_seed
    state = fresh_state(
        setup.specs, setup.optimizer, setup.abstract, seed=seed, fusion=setup.fusion
    )
    return state, None


def _resumed(setup: Setup, stores: list[CheckpointStore]) -> tuple[TrainState, list[State]] | None:
    """What the run's own checkpoints hold; None without any."""
    if not stores:
        return None
    step = setup.config.checkpoint.restore_step
    config = flatten(setup.config)
    if step != -1 and any(store.wrote(config, after=step) for store in stores):
        _logger.info(
            "restore_step=%d: newer steps are of this very command, started before; going on from "
            "the newest (move them away to start from step %d again)",
            step,
            step,
        )
        step = -1
    found = restore_from(stores, setup.stored, step=None if step == -1 else step)
    if found is None:
        return None
    _logger.info("resumed from step %d of %s", found.step, setup.directory)
    if found.set_aside:
        _logger.info("set aside newer steps: %s", ", ".join(map(str, found.set_aside)))
    _log_schedule(setup, found.config, found.step)
    return setup.from_stored(found.state), found.data_states


def _loaded(setup: Setup) -> tuple[TrainState, list[State] | None] | None:
    """What the paths that the config gives hold; None without any."""
    config = setup.config.checkpoint
    if config.load_full_state_path:
        found = load_full_state(config.load_full_state_path, setup.stored)
        _logger.info("state of step %d of %s", found.step, config.load_full_state_path)
        _log_schedule(setup, found.config, found.step)
        return setup.from_stored(found.state), found.data_states
    if config.load_parameters_path:
        params = load_weights(
            config.load_parameters_path, setup.stored.params, model=setup.config.model
        )
        _logger.info("weights of %s", config.load_parameters_path)
        state = state_from_params(params, setup.optimizer, setup.abstract)
        return setup.from_stored(state), None
    return None


def _log_schedule(setup: Setup, saved: Mapping[str, Any], step: int) -> None:
    """Says so where the schedule is another one than the checkpoint's run had."""
    config = setup.config
    length = schedule_length(config.optimizer, steps=config.training.steps)
    before = saved["learning_rate_schedule_steps"]
    before = before if before > 0 else saved["steps"]
    if length != before and config.optimizer.lr_schedule_type != "constant":
        _logger.info(
            "the learning rate follows a schedule of %d steps, no longer one of %d: %.3e at step "
            "%d; learning_rate_schedule_steps=%d keeps it",
            length,
            before,
            setup.schedule(step),
            step,
            before,
        )

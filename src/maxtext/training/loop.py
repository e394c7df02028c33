"""The training loop: data in, metrics and checkpoints out."""

import contextlib
import logging
import time

import jax
import numpy as np

from maxtext.config.errors import ConfigError
from maxtext.config.flat import flatten
from maxtext.config.schema import Config
from maxtext.models.backend import config_errors
from maxtext.parallel.distributed import initialize
from maxtext.parallel.layout import use_layout
from maxtext.training.feed import Feed
from maxtext.training.interrupt import Interrupt
from maxtext.training.recorder import Dispatched
from maxtext.training.setup import prepare
from maxtext.training.start import Run, start

_logger = logging.getLogger(__name__)


def train(config: Config) -> None:
    """Runs, or goes on with, the run that `config` describes.

    Raises:
        ConfigError: Something does not fit the devices, the data or a checkpoint. Nothing is
            compiled or written yet, except where data turns bad in the middle: then a checkpoint
            of the last step is.
        NonFiniteError: A step's loss or gradient is NaN or infinite.
        CheckpointError: A checkpoint could not be written.
        SystemExit: With 128 + its number after SIGTERM or Ctrl-C, once a checkpoint is written.
    """
    with config_errors():
        initialize(config.run)
    setup = prepare(config)
    if jax.process_index() > 0:
        # One process tells what all of them do.
        logging.getLogger("maxtext").setLevel(logging.WARNING)
    with use_layout(setup.layout), contextlib.ExitStack() as stack:
        run = start(setup, stack)
        with Interrupt() as interrupt:
            _run_steps(run, interrupt)
    if interrupt.received or interrupt.agreed:
        raise SystemExit(128 + (interrupt.received or interrupt.agreed))


def _run_steps(run: Run, interrupt: Interrupt) -> None:
    training, checkpoint = run.setup.config.training, run.setup.config.checkpoint
    if run.step >= training.steps:
        _logger.info("all %d steps are done already; raise steps to go on", training.steps)
        return
    first, evaluated = run.step, -1
    # Nothing is gained by reporting late while devices wait for data.
    feed = Feed(run.batches, interrupt, data_state=run.data_state, before_wait=run.recorder.flush)
    try:
        while run.step < training.steps and (loaded := feed.next(done=run.step)) is not None:
            started = time.perf_counter()
            rate = np.float32(run.setup.schedule(run.step))
            run.state, metrics = run.step_fn(run.state, loaded.batch, rate)
            run.recorder.add(
                Dispatched(
                    step=run.step,
                    metrics=metrics,
                    batch_digest=loaded.digest,
                    input_wait_seconds=loaded.wait_seconds,
                    started=started,
                    source_tokens=feed.tokens,
                )
            )
            run.step, run.data_state = run.step + 1, loaded.state
            if training.eval_interval > 0 and run.step % training.eval_interval == 0:
                _evaluate(run, interrupt)
                evaluated = run.step
            if checkpoint.enable_checkpointing and run.step % checkpoint.checkpoint_period == 0:
                _save(run)
    except ConfigError:
        # Data turned bad; the steps before it are sound.
        _save_last(run, first)
        raise
    if run.evaluation is not None and run.step not in (first, evaluated) and not interrupt.agreed:
        _evaluate(run, interrupt)
    _save_last(run, first, interrupted=bool(interrupt.agreed))


def _evaluate(run: Run, interrupt: Interrupt) -> None:
    assert run.evaluation is not None
    run.recorder.flush()
    with run.recorder.stall("eval"), config_errors():
        record = run.evaluation.run(run.state.params, step=run.step - 1, interrupt=interrupt)
    if record is not None:
        run.log.evaluation(record)


def _save(run: Run) -> None:
    """Saves the state after the last step, which must have been reported as sound."""
    assert run.store is not None
    run.recorder.flush()
    with run.recorder.stall("checkpoint"):
        run.store.save(
            run.step,
            run.state,
            data_state=run.data_state,
            config=flatten(run.setup.config),
        )


def _save_last(run: Run, first: int, *, interrupted: bool = True) -> None:
    """Reports the last step, and saves it unless no step was taken or the config says not to."""
    run.recorder.flush()
    config = run.setup.config.checkpoint
    wanted = interrupted or config.save_checkpoint_on_completion
    if config.enable_checkpointing and wanted and run.step > first:
        _save(run)
        assert run.store is not None
        run.store.wait()
        _logger.info("checkpoint of step %d in %s", run.step, run.setup.directory / "checkpoints")

"""The training loop: data in, metrics and checkpoints out."""

import contextlib
import logging
import time

import jax
import numpy as np

from maxtext.checkpoint.store import CheckpointStore
from maxtext.config.errors import ConfigError
from maxtext.config.flat import flatten
from maxtext.config.schema import Config
from maxtext.data.prefetch import Loaded
from maxtext.metrics.goodput import Goodput
from maxtext.models.backend import config_errors
from maxtext.parallel.distributed import initialize
from maxtext.parallel.layout import use_layout
from maxtext.training.feed import Feed
from maxtext.training.interrupt import Interrupt
from maxtext.training.recorder import Dispatched
from maxtext.training.setup import prepare
from maxtext.training.start import Run, StepFn, compile_step, start

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
    goodput = Goodput()
    with goodput.during("startup"), config_errors():
        initialize(config.run)
        setup = prepare(config)
    if jax.process_index() > 0:
        # One process tells what all of them do.
        logging.getLogger("maxtext").setLevel(logging.WARNING)
    with use_layout(setup.layout), contextlib.ExitStack() as stack:
        with goodput.during("startup"):
            run = start(setup, stack, goodput=goodput)
        first = run.step
        if first >= config.training.steps:
            _logger.info("all %d steps are done already; raise steps to go on", first)
            return
        with goodput.during("compilation"):
            step_fn = compile_step(run.setup, run.traced)
        with Interrupt() as interrupt:
            try:
                _run_steps(run, step_fn, interrupt)
            finally:
                if run.step > first:
                    run.log.goodput(run.step - 1, goodput.seconds())
    if number := interrupt.received or interrupt.agreed:
        raise SystemExit(128 + number)


def _run_steps(run: Run, step_fn: StepFn, interrupt: Interrupt) -> None:
    first, steps = run.step, run.setup.config.training.steps
    # Nothing is gained by reporting late while devices wait for data.
    feed = Feed(
        run.batches,
        interrupt,
        data_state=run.data_state,
        before_wait=run.recorder.flush,
        goodput=run.goodput,
    )
    try:
        with run.goodput.during("steps"):
            while run.step < steps and (loaded := feed.next(done=run.step)) is not None:
                _take_step(run, step_fn, loaded, source_tokens=feed.tokens)
                _after_step(run, interrupt)
            # Here, so that the time of the last step counts as a step's.
            run.recorder.flush()
            run.profiler.end(run.step)
    except ConfigError:
        # Data turned bad; the steps before it are sound.
        _save_last(run, first)
        raise
    if run.step > first and not interrupt.agreed and not _is_evaluated(run):
        _evaluate(run, interrupt)
    _save_last(run, first, interrupted=bool(interrupt.agreed))


def _take_step(run: Run, step_fn: StepFn, loaded: Loaded, *, source_tokens: dict[str, int]) -> None:
    run.profiler.before(run.step)
    started = time.perf_counter()
    with jax.profiler.StepTraceAnnotation("train", step_num=run.step):
        rate = np.float32(run.setup.schedule(run.step))
        run.state, metrics = step_fn(run.state, loaded.batch, rate)
        run.recorder.add(
            Dispatched(
                step=run.step,
                metrics=metrics,
                batch_digest=loaded.digest,
                input_wait_seconds=loaded.wait_seconds,
                started=started,
                source_tokens=source_tokens,
            )
        )
    run.step, run.data_state = run.step + 1, loaded.state


def _after_step(run: Run, interrupt: Interrupt) -> None:
    """Evaluates and saves where it is time."""
    training, checkpoint = run.setup.config.training, run.setup.config.checkpoint
    interval, local_period = training.eval_interval, checkpoint.local_checkpoint_period
    last = run.step == training.steps
    if last or (interval > 0 and run.step % interval == 0):
        _evaluate(run, interrupt)
    if run.store is not None and run.step % checkpoint.checkpoint_period == 0:
        _save(run, run.store)
    # The last step is for the other one: a run that finds it here would call itself done.
    elif run.local_store is not None and run.step % local_period == 0 and not last:
        _save(run, run.local_store)


def _is_evaluated(run: Run) -> bool:
    return run.evaluated is not None and run.evaluated.step == run.step - 1


def _evaluate(run: Run, interrupt: Interrupt) -> None:
    if run.evaluation is None:
        return
    run.recorder.flush()
    with run.recorder.stall("eval"), config_errors():
        record = run.evaluation.run(run.state.params, step=run.step - 1, interrupt=interrupt)
    if record is not None:
        run.evaluated = record
        run.log.evaluation(record)


def _save(run: Run, store: CheckpointStore) -> None:
    """Saves the state after the last step, which must have been reported as sound."""
    run.recorder.flush()
    loss = run.evaluated.loss if run.evaluated is not None and _is_evaluated(run) else None
    with run.recorder.stall("checkpoint"):
        for one in (run.store, run.local_store):
            if one is not None:
                one.wait()
        store.save(
            run.step,
            run.setup.to_stored(run.state),
            data_state=run.data_state,
            config=flatten(run.setup.config),
            eval_loss=loss,
        )


def _save_last(run: Run, first: int, *, interrupted: bool = True) -> None:
    """Reports the last step, and saves it unless no step was taken or the config says not to."""
    run.recorder.flush()
    config = run.setup.config.checkpoint
    wanted = interrupted or config.save_checkpoint_on_completion
    if run.store is not None and wanted and run.step > first:
        _save(run, run.store)
        with run.recorder.stall("checkpoint"):
            run.store.wait()
        _logger.info("checkpoint of step %d in %s", run.step, run.setup.directory / "checkpoints")

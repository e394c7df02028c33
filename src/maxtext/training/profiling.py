"""Traces of some steps, for xprof."""

import logging
from pathlib import Path

import jax

from maxtext.config.schema_training import ProfileConfig
from maxtext.training.recorder import Recorder

_logger = logging.getLogger(__name__)


class Profiler:
    """Traces the steps that the config asks for, in the first process.

    Args:
        config: Which steps, counted from `first_step`.
        folder: Where xprof looks for traces: that of the run's TensorBoard files.
        first_step: First step of this process.
        recorder: Made to wait for the devices, so that a trace holds whole steps.
    """

    def __init__(
        self, config: ProfileConfig, *, folder: Path, first_step: int, recorder: Recorder
    ) -> None:
        self._folder = folder
        self._recorder = recorder
        self._first = self._end = -1
        self._began: int | None = None
        if config.profiler and jax.process_index() == 0:
            self._first = first_step + config.skip_first_n_steps_for_profiler
            self._end = self._first + config.profiler_steps

    def before(self, step: int) -> None:
        """Starts or ends the trace where it is time, before `step` is dispatched."""
        if step == self._first:
            self._recorder.flush()
            with self._recorder.stall("profiler"):
                jax.profiler.start_trace(self._folder)
            self._began = step
        elif step == self._end:
            self.end(step)

    def end(self, step: int) -> None:
        """Ends a trace under way; `step` is the first that it does not hold."""
        if self._began is None:
            return
        first = self._began
        self._recorder.flush()
        self.close()
        _logger.info("trace of steps %d to %d in %s", first, step - 1, self._folder)

    def close(self) -> None:
        """Ends a trace under way, whatever the devices do."""
        if self._began is not None:
            self._began = None
            with self._recorder.stall("profiler"):
                jax.profiler.stop_trace()

"""Metrics from devices to the log, one step late, so that logging never blocks a device."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Generator, Mapping

import jax

from maxtext.config.schema_training import TrainingConfig
from maxtext.metrics.goodput import Goodput
from maxtext.metrics.step_log import StepLog, StepRecord
from maxtext.training.step import StepMetrics

# What the stalls are called in the goodput.
_PARTS = {"eval": "evaluation", "checkpoint": "checkpoint", "profiler": "other"}


class NonFiniteError(Exception):
    """The loss or the gradient of a step is NaN or infinite."""


@dataclasses.dataclass(frozen=True)
class Dispatched:
    """A step that devices are at work on.

    Attributes:
        step: Its number, the first is 0.
        metrics: Arrays that are not there yet.
        batch_digest: Of the batch.
        input_wait_seconds: How long the loop stood still for the batch.
        started: `time.perf_counter()` when it was dispatched.
        source_tokens: Tokens of each source that were fed up to here, where there are several.
    """

    step: int
    metrics: StepMetrics
    batch_digest: str
    input_wait_seconds: float
    started: float
    source_tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)


class Recorder:
    """Logs each step once the next one is dispatched.

    A step's time runs from when its batch was there and the step before it had ended until its
    metrics have left the device. Stalls (evaluation, checkpoints, waiting for data) are no part
    of it and are reported under names of their own.
    """

    def __init__(self, log: StepLog, config: TrainingConfig, *, goodput: Goodput) -> None:
        self._log = log
        self._config = config
        self._goodput = goodput
        self._pending: Dispatched | None = None
        self._ended = 0.0
        self._stalls: dict[str, float] = {}

    def add(self, dispatched: Dispatched) -> None:
        """Takes a step, and reports the one before. Raises as `flush`."""
        before, self._pending = self._pending, dispatched
        self._report(before)

    def flush(self) -> None:
        """Waits for the last step and reports it.

        Raises:
            NonFiniteError: Its loss or gradient is NaN or infinite, and the config says to stop.
        """
        last, self._pending = self._pending, None
        self._report(last)

    @contextlib.contextmanager
    def stall(self, name: str) -> Generator[None]:
        """Adds the time of the block to `perf/<name>_seconds` of the step that follows it.

        And to its part of the goodput.
        """
        start = time.perf_counter()
        with self._goodput.during(_PARTS[name]):
            yield
        tag = f"perf/{name}_seconds"
        self._stalls[tag] = self._stalls.get(tag, 0.0) + time.perf_counter() - start

    def _report(self, done: Dispatched | None) -> None:
        if done is None:
            return
        metrics = jax.device_get(done.metrics)
        now = time.perf_counter()
        seconds = now - max(done.started, self._ended)
        self._ended = now
        stalls, self._stalls = self._stalls, {}
        record = StepRecord(
            step=done.step,
            seconds=seconds,
            total_weights=int(metrics.total_weights),
            loss=float(metrics.loss),
            lm_loss=float(metrics.lm_loss),
            grad_norm=float(metrics.grad_norm),
            learning_rate=float(metrics.learning_rate),
            batch_digest=done.batch_digest,
            skipped=None if metrics.skipped is None else bool(metrics.skipped),
            source_tokens=done.source_tokens,
            extras={
                "learning/z_loss": float(metrics.z_loss),
                "learning/param_norm": float(metrics.param_norm),
                "perf/input_wait_seconds": done.input_wait_seconds,
                **stalls,
            },
        )
        self._log.step(record)
        self._check(record)

    def _check(self, record: StepRecord) -> None:
        for name, value in (("loss", record.loss), ("grad_norm", record.grad_norm)):
            key = "abort_on_nan_loss" if math.isnan(value) else "abort_on_inf_loss"
            if not math.isfinite(value) and getattr(self._config, key):
                raise NonFiniteError(
                    f"{name}={value} at step {record.step} (batch {record.batch_digest}); no "
                    f"checkpoint holds this step's update. {key}=false goes on regardless"
                )

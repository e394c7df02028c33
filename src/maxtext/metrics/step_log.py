"""The step log: console lines, JSONL and TensorBoard, from one record a step."""

import dataclasses
import logging
import math
import statistics
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from maxtext.config.schema_training import MetricsConfig
from maxtext.metrics.goodput import percentages
from maxtext.metrics.history import json_line, open_history, writing

if TYPE_CHECKING:
    from maxtext.metrics.board import Board

_logger = logging.getLogger(__name__)

# Steps whose median duration the remaining time is reckoned from.
_RECENT_STEPS = 20
# What the names of counts of tokens begin with, one for each source of a mixture.
_SOURCE_TOKENS = "data/tokens/"


@dataclasses.dataclass(frozen=True)
class Workload:
    """What each step of a run costs.

    Attributes:
        steps: Steps of the run in all.
        tokens_per_device: Tokens a device and step, padding included.
        flops_per_device: Model FLOPs a device and step.
        peak_flops: FLOP/s of a device at best; None where unknown.
    """

    steps: int
    tokens_per_device: float
    flops_per_device: float
    peak_flops: float | None


@dataclasses.dataclass(frozen=True)
class StepRecord:
    """What one step gave, on the host.

    Attributes:
        step: Number of the step, the first is 0.
        seconds: Duration of this step alone, until its results have left the device.
        total_weights: Tokens of the global batch that count in the loss.
        loss: What was minimized, a token.
        lm_loss: Its cross entropy, nats a token.
        grad_norm: Global norm of the gradient before clipping.
        learning_rate: Rate of this step's update.
        batch_digest: Hash of the batch, for JSONL.
        skipped: Whether there was no update; None where none is ever skipped.
        source_tokens: Tokens of each source up to here, where there are several.
        extras: Further scalars under their TensorBoard names, such as
            `perf/input_wait_seconds`; JSONL gets them under the same names.
    """

    step: int
    seconds: float
    total_weights: int
    loss: float
    lm_loss: float
    grad_norm: float
    learning_rate: float
    batch_digest: str
    skipped: bool | None = None
    source_tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)
    extras: Mapping[str, int | float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class EvalRecord:
    """What one evaluation gave, on the host.

    Attributes:
        step: The last step before it.
        seconds: Duration of the evaluation.
        total_weights: Tokens that count.
        loss: Cross entropy, nats a token.
    """

    step: int
    seconds: float
    total_weights: int
    loss: float


class StepLog:
    """Writes the records of a run; a context manager that closes its files.

    Only the process that `writes` does anything. `log_period` thins console lines alone; JSONL
    and TensorBoard get every step.
    """

    def __init__(
        self,
        config: MetricsConfig,
        workload: Workload,
        *,
        tensorboard_dir: str,
        start_step: int,
        writes: bool,
    ) -> None:
        """Opens the files that `config` asks for.

        Args:
            config: What is reported, and where.
            workload: What each step costs.
            tensorboard_dir: Folder of the run's TensorBoard files.
            start_step: First step of this process; records of it and later ones, which an
                earlier process left, are dropped.
            writes: Whether this is the process that reports, `jax.process_index() == 0`.

        Raises:
            ValueError: `metrics_file` cannot be written or is no file of metrics, or the
                TensorBoard files cannot be written.
        """
        self._config = config
        self._workload = workload
        self._writes = writes
        self._first = start_step
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._source_tokens: Mapping[str, int] = {}
        self._history = None
        self._board = None
        if writes and config.metrics_file:
            self._history = open_history(config.metrics_file, start_step=start_step)
        if writes and config.enable_tensorboard:
            self._board = _open_board(tensorboard_dir, start_step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Reports the tokens of each source, flushes and closes the files."""
        self._log_sources()
        if self._history is not None:
            with writing(self._history.name):
                self._history.close()
        if self._board is not None:
            self._board.close()

    def step(self, record: StepRecord) -> None:
        """Reports a step."""
        if not self._writes:
            return
        # The first step of a process includes compilation.
        if record.step > self._first:
            self._recent.append(record.seconds)
        self._source_tokens = record.source_tokens
        fields = _step_fields(record, self._workload)
        last = record.step == self._workload.steps - 1
        if record.step % self._config.log_period == 0 or last:
            _logger.info("%s", _step_line(record.step, fields, self._seconds_left(record.step)))
        fields |= record.extras
        fields |= {f"{_SOURCE_TOKENS}{name}": n for name, n in record.source_tokens.items()}
        self._write(record.step, {**fields, "batch_digest": record.batch_digest})
        self._plot(record.step, STEP_TAGS, fields)

    def evaluation(self, record: EvalRecord) -> None:
        """Reports an evaluation."""
        if not self._writes:
            return
        fields: dict[str, int | float] = {
            "eval/avg_loss": record.loss,
            "eval/avg_perplexity": _perplexity(record.loss),
            "eval/total_weights": record.total_weights,
            "eval/seconds": record.seconds,
        }
        _logger.info("%s", _eval_line(record))
        self._log_sources()
        self._write(record.step, fields)
        self._plot(record.step, {}, fields)

    def _log_sources(self) -> None:
        total = sum(self._source_tokens.values())
        if total:
            parts = (f"{name} {n:,} ({n / total:.2%})" for name, n in self._source_tokens.items())
            _logger.info("tokens of each source: %s", ", ".join(parts))

    def goodput(self, step: int, seconds: Mapping[str, float]) -> None:
        """Reports what the time of this process went to, under the number of its last step."""
        if not self._writes:
            return
        total = sum(seconds.values())
        shares = ", ".join(
            f"{part.replace('_', ' ')} {share:.1f} %"
            for part, share in percentages(seconds).items()
        )
        _logger.info("goodput: %s of %s", shares, _duration(total))
        fields = {f"goodput/{part}": value / total for part, value in seconds.items()}
        fields["goodput/total_seconds"] = total
        self._write(step, fields)
        self._plot(step, {}, fields)

    def _seconds_left(self, step: int) -> float | None:
        steps_left = self._workload.steps - 1 - step
        if not self._recent or steps_left <= 0:
            return None
        return statistics.median(self._recent) * steps_left

    def _write(self, step: int, fields: Mapping[str, int | float | str]) -> None:
        if self._history is not None:
            with writing(self._history.name):
                self._history.write(json_line(step, fields))
                self._history.flush()

    def _plot(self, step: int, tags: Mapping[str, str], fields: Mapping[str, int | float]) -> None:
        if self._board is not None:
            values = {tags.get(name, name): value for name, value in fields.items()}
            self._board.scalars(step, values)


# TensorBoard's names for the fields of a step, those that upstream's users know.
STEP_TAGS = {
    "seconds": "perf/step_time_seconds",
    "tflops_per_second_per_device": "perf/per_device_tflops_per_sec",
    "tokens_per_second_per_device": "perf/per_device_tokens_per_sec",
    "total_weights": "learning/total_weights",
    "loss": "learning/loss",
    "lm_loss": "learning/lm_loss",
    "perplexity": "learning/perplexity",
    "grad_norm": "learning/grad_norm",
    "learning_rate": "learning/current_learning_rate",
    "skipped": "learning/skipped",
    "mfu": "perf/mfu",
}


def _open_board(folder: str, start_step: int) -> "Board":
    # Imported where it is wanted: it costs a sixth of a second.
    from maxtext.metrics.board import Board

    return Board(folder, start_step=start_step)


def _step_fields(record: StepRecord, workload: Workload) -> dict[str, int | float]:
    assert record.seconds > 0, f"step {record.step} took {record.seconds} seconds"
    flops_per_second = workload.flops_per_device / record.seconds
    fields = {
        "seconds": record.seconds,
        "tflops_per_second_per_device": flops_per_second / 1e12,
        "tokens_per_second_per_device": workload.tokens_per_device / record.seconds,
        "total_weights": record.total_weights,
        "loss": record.loss,
        "lm_loss": record.lm_loss,
        "perplexity": _perplexity(record.lm_loss),
        "grad_norm": record.grad_norm,
        "learning_rate": record.learning_rate,
    }
    if record.skipped is not None:
        fields["skipped"] = int(record.skipped)
    if workload.peak_flops is not None:
        fields["mfu"] = flops_per_second / workload.peak_flops
    return fields


def _step_line(step: int, fields: Mapping[str, int | float], seconds_left: float | None) -> str:
    teraflops = fields["tflops_per_second_per_device"]
    parts = [
        f"completed step: {step}",
        f"seconds: {fields['seconds']:.3f}",
        f"TFLOP/s/device: {teraflops:.{3 if teraflops >= 1 else 6}f}",
        f"Tokens/s/device: {fields['tokens_per_second_per_device']:.3f}",
        f"total_weights: {fields['total_weights']}",
        f"loss: {fields['loss']:#.6g}",
        f"lm_loss: {fields['lm_loss']:#.6g}",
        f"perplexity: {fields['perplexity']:.3f}",
        f"grad_norm: {fields['grad_norm']:#.6g}",
        f"lr: {fields['learning_rate']:.3e}",
    ]
    if fields.get("skipped"):
        parts.append("skipped: no update, a spike")
    if "mfu" in fields:
        parts.append(f"MFU: {fields['mfu']:.1%}")
    if seconds_left is not None:
        parts.append(f"ETA: {_duration(seconds_left)}")
    return ", ".join(parts)


def _eval_line(record: EvalRecord) -> str:
    return (
        f"eval metrics after step: {record.step}, loss={record.loss:#.6g}, "
        f"total_weights={record.total_weights}, perplexity={_perplexity(record.loss):.3f}, "
        f"seconds={record.seconds:.3f}"
    )


def _perplexity(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _duration(seconds: float) -> str:
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    if minutes:
        return f"{minutes}m{whole % 60:02d}s"
    return f"{whole}s"

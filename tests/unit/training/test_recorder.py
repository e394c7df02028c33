import dataclasses
import math

import jax.numpy as jnp
import pytest

from maxtext.config.load import load
from maxtext.metrics.goodput import Goodput
from maxtext.metrics.step_log import StepLog, StepRecord, Workload
from maxtext.training import recorder as module
from maxtext.training.recorder import Dispatched, NonFiniteError, Recorder
from maxtext.training.step import StepMetrics


class FakeLog(StepLog):
    """Keeps the records."""

    def __init__(self) -> None:
        config = load(["enable_tensorboard=false"], {}).config.metrics
        work = Workload(steps=9, tokens_per_device=1, flops_per_device=1, peak_flops=None)
        super().__init__(config, work, tensorboard_dir="", start_step=0, writes=False)
        self.records: list[StepRecord] = []

    def step(self, record: StepRecord) -> None:
        self.records.append(record)


class Clock:
    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(module, "time", fake)
    return fake


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


def recorder(log: FakeLog, *argv: str) -> Recorder:
    return Recorder(log, load(argv, {}).config.training, goodput=Goodput())


def step(
    number: int, *, started: float = 0.0, skipped: bool | None = None, **values: float
) -> Dispatched:
    numbers = {field.name: 1.0 for field in dataclasses.fields(StepMetrics)} | values
    scalars = {name: jnp.float32(value) for name, value in numbers.items()}
    others = {"total_weights": jnp.int32(7), "skipped": None}
    others |= {} if skipped is None else {"skipped": jnp.bool_(skipped)}
    metrics = StepMetrics(**scalars | others)
    return Dispatched(number, metrics, f"digest{number}", 0.25, started)


def test_a_step_is_logged_once_the_next_is_dispatched(log: FakeLog) -> None:
    records = recorder(log)
    records.add(step(0))
    assert log.records == []
    records.add(step(1))
    assert [record.step for record in log.records] == [0]
    records.flush()
    records.flush()
    assert [record.step for record in log.records] == [0, 1]


def test_a_record_holds_the_steps_numbers(log: FakeLog) -> None:
    records = recorder(log)
    records.add(step(3, loss=2.0, lm_loss=1.5, grad_norm=4.0, learning_rate=0.5, z_loss=8.0))
    records.flush()
    (record,) = log.records
    assert (record.step, record.loss, record.lm_loss, record.grad_norm) == (3, 2.0, 1.5, 4.0)
    assert (record.learning_rate, record.total_weights, record.batch_digest) == (0.5, 7, "digest3")
    assert record.extras == {
        "learning/z_loss": 8.0,
        "learning/param_norm": 1.0,
        "perf/input_wait_seconds": 0.25,
    }
    assert record.skipped is None


@pytest.mark.parametrize("skipped", [True, False])
def test_a_record_says_whether_the_step_was_skipped(log: FakeLog, skipped: bool) -> None:
    records = recorder(log)
    records.add(step(3, skipped=skipped))
    records.flush()
    assert log.records[0].skipped is skipped


def test_a_step_lasts_from_the_end_of_the_one_before(log: FakeLog, clock: Clock) -> None:
    records = recorder(log)
    records.add(step(0, started=100.0))
    clock.now = 103.0
    records.add(step(1, started=101.0))  # dispatched while step 0 ran until 103
    clock.now = 108.0
    records.flush()
    assert [record.seconds for record in log.records] == [3.0, 5.0]


def test_waiting_before_a_step_is_no_part_of_it(log: FakeLog, clock: Clock) -> None:
    records = recorder(log)
    records.add(step(0, started=100.0))
    clock.now = 103.0
    records.flush()
    records.add(step(1, started=150.0))
    clock.now = 152.0
    records.flush()
    assert [record.seconds for record in log.records] == [3.0, 2.0]


def test_stalls_add_up_beside_the_step_that_follows(log: FakeLog, clock: Clock) -> None:
    records = recorder(log)
    records.add(step(0, started=100.0))
    records.flush()
    for seconds in (10.0, 20.0):
        with records.stall("eval"):
            clock.now += seconds
    with records.stall("checkpoint"):
        clock.now += 5.0
    records.add(step(1, started=clock.now))
    clock.now += 1.0
    records.add(step(2, started=clock.now))
    records.flush()
    first, second, third = log.records
    assert "perf/eval_seconds" not in first.extras
    assert second.extras["perf/eval_seconds"] == 30.0
    assert second.extras["perf/checkpoint_seconds"] == 5.0
    assert second.seconds == 1.0
    assert "perf/eval_seconds" not in third.extras


@pytest.mark.parametrize(
    ("values", "argv", "text"),
    [
        ({"loss": math.nan}, (), "loss=nan at step 4 (batch digest4)"),
        ({"loss": math.inf}, (), "loss=inf at step 4"),
        ({"grad_norm": math.nan}, (), "grad_norm=nan at step 4"),
        ({"loss": math.nan}, ("abort_on_inf_loss=false",), "abort_on_nan_loss=false goes on"),
        ({"grad_norm": -math.inf}, ("abort_on_nan_loss=false",), "abort_on_inf_loss=false goes on"),
    ],
)
def test_a_step_that_is_not_finite_stops_the_run_after_it_is_logged(
    values: dict, argv: tuple[str, ...], text: str, log: FakeLog
) -> None:
    records = recorder(log, *argv)
    records.add(step(4, **values))
    with pytest.raises(NonFiniteError) as caught:
        records.add(step(5))
    assert text in str(caught.value)
    assert [record.step for record in log.records] == [4]


@pytest.mark.parametrize(
    ("value", "key"), [(math.nan, "abort_on_nan_loss"), (math.inf, "abort_on_inf_loss")]
)
def test_a_run_may_go_on_regardless(value: float, key: str, log: FakeLog) -> None:
    records = recorder(log, f"{key}=false")
    records.add(step(0, loss=value, grad_norm=value))
    records.flush()
    assert len(log.records) == 1

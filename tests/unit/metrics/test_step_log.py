import json
import logging
import math
import re

import pytest

from maxtext.config.schema_training import MetricsConfig
from maxtext.metrics.step_log import EvalRecord, StepLog, StepRecord, Workload

WORKLOAD = Workload(
    steps=1000, tokens_per_device=8192.0, flops_per_device=2.5e14, peak_flops=1.25e15
)


@pytest.fixture(autouse=True)
def lines(caplog):
    caplog.set_level(logging.INFO, logger="maxtext")
    return caplog


def record(step, **changes):
    values = {
        "step": step,
        "seconds": 0.25,
        "total_weights": 32784,
        "loss": 5.0654321,
        "lm_loss": 5.0651234,
        "grad_norm": 1.2345678,
        "batch_digest": "00ff00ff00ff00ff",
        "learning_rate": 3e-4,
    }
    return StepRecord(**values | changes)


def open_log(folder, *, start_step=0, board=False, period=1, writes=True, workload=WORKLOAD):
    config = MetricsConfig(
        log_period=period,
        enable_tensorboard=board,
        metrics_file=str(folder / "deep" / "metrics.jsonl"),
    )
    return StepLog(
        config,
        workload,
        tensorboard_dir=str(folder / "tensorboard"),
        start_step=start_step,
        writes=writes,
    )


def history(folder):
    lines = (folder / "deep" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def scalars(folder):
    from tensorboardX.event_file_writer import EventsWriter  # noqa: F401
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for file in (folder / "tensorboard").glob("events.*"):
        data, at = file.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 16 + size
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
    return found


def test_the_step_line_has_upstreams_fields_in_their_order_and_ours_after(lines, tmp_path) -> None:
    with open_log(tmp_path) as log:
        log.step(record(8))
        log.step(record(9))
    assert lines.messages[-1] == (
        "completed step: 9, seconds: 0.250, TFLOP/s/device: 1000.000, Tokens/s/device: 32768.000, "
        "total_weights: 32784, loss: 5.06543, lm_loss: 5.06512, perplexity: 158.400, "
        "grad_norm: 1.23457, lr: 3.000e-04, MFU: 80.0%, ETA: 4m08s"
    )


def test_a_skipped_step_is_marked_and_one_that_could_have_been_is_counted(lines, tmp_path) -> None:
    with open_log(tmp_path) as log:
        log.step(record(1, skipped=True))
        log.step(record(2, skipped=False))
        log.step(record(3))
    shown = ["skipped: no update, a spike" in line for line in lines.messages]
    assert shown == [True, False, False]
    assert [one.get("skipped") for one in history(tmp_path)] == [1, 0, None]


def test_a_slow_device_still_shows_its_rate(lines, tmp_path) -> None:
    slow = Workload(steps=3, tokens_per_device=32.0, flops_per_device=2e7, peak_flops=None)
    with open_log(tmp_path, workload=slow) as log:
        log.step(record(0))
    assert "TFLOP/s/device: 0.000080, " in lines.text
    assert "MFU" not in lines.text


def test_time_left_leaves_out_the_first_step_and_outliers(lines, tmp_path) -> None:
    with open_log(tmp_path) as log:
        for step, seconds in enumerate([600.0, 2.0, 2.0, 90.0, 2.0]):
            log.step(record(step, seconds=seconds))
    assert "ETA" not in lines.messages[0]
    assert lines.messages[-1].endswith("ETA: 33m10s")


@pytest.mark.parametrize(("seconds", "want"), [(0.01, "10s"), (3.75, "1h02m"), (180.0, "2d01h")])
def test_time_left_is_short(lines, tmp_path, seconds, want) -> None:
    with open_log(tmp_path) as log:
        log.step(record(0))
        log.step(record(1, seconds=seconds))
    assert lines.messages[-1].endswith(f"ETA: {want}")


def test_log_period_thins_lines_but_not_the_history(lines, tmp_path) -> None:
    few = Workload(steps=6, tokens_per_device=1.0, flops_per_device=1.0, peak_flops=None)
    with open_log(tmp_path, period=4, workload=few) as log:
        for step in range(6):
            log.step(record(step))
    assert [re.findall(r"step: (\d+)", line)[0] for line in lines.messages] == ["0", "4", "5"]
    assert [entry["step"] for entry in history(tmp_path)] == [0, 1, 2, 3, 4, 5]


def test_the_history_keeps_every_bit(tmp_path) -> None:
    with open_log(tmp_path) as log:
        log.step(record(0, loss=0.1 + 0.2, extras={"perf/input_wait_seconds": 1 / 3}))
    (entry,) = history(tmp_path)
    assert entry["loss"] == 0.1 + 0.2
    assert entry["perf/input_wait_seconds"] == 1 / 3
    assert entry["mfu"] == 0.8


def test_each_line_is_on_disk_before_the_next_step(tmp_path) -> None:
    with open_log(tmp_path) as log:
        log.step(record(0))
        assert [entry["step"] for entry in history(tmp_path)] == [0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_survive_in_valid_json(tmp_path, value) -> None:
    with open_log(tmp_path) as log:
        log.step(record(0, loss=value, lm_loss=value))
    assert repr(float(history(tmp_path)[0]["loss"])) == repr(value)


def test_a_loss_too_large_for_a_perplexity_is_no_error(lines, tmp_path) -> None:
    with open_log(tmp_path) as log:
        log.step(record(0, lm_loss=1e4))
    assert "perplexity: inf" in lines.text


def test_a_resumed_run_has_one_line_for_each_step(tmp_path) -> None:
    with open_log(tmp_path) as log:
        for step in range(5):
            log.step(record(step, loss=1.0))
        log.evaluation(EvalRecord(step=2, seconds=1.0, total_weights=10, loss=2.0))
        log.evaluation(EvalRecord(step=4, seconds=1.0, total_weights=10, loss=2.0))
    with open_log(tmp_path, start_step=3) as log:
        log.step(record(3, loss=9.0))
    got = [(entry["step"], entry.get("loss")) for entry in history(tmp_path)]
    assert got == [(0, 1.0), (1, 1.0), (2, 1.0), (2, None), (3, 9.0)]


def test_a_new_run_keeps_the_lines_of_an_old_one(tmp_path) -> None:
    for loss in (1.0, 2.0, 3.0):
        with open_log(tmp_path) as log:
            log.step(record(0, loss=loss))
    names = ("metrics.jsonl.1", "metrics.jsonl.2", "metrics.jsonl")
    kept = [json.loads((tmp_path / "deep" / name).read_text())["loss"] for name in names]
    assert kept == [1.0, 2.0, 3.0]


def test_a_half_written_last_line_goes(tmp_path) -> None:
    with open_log(tmp_path) as log:
        log.step(record(0))
    with (tmp_path / "deep" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "sec')
    with open_log(tmp_path, start_step=1) as log:
        log.step(record(1))
    assert [entry["step"] for entry in history(tmp_path)] == [0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "my notes",
        "my notes\n",
        '{"step": 1, broken\n',
        '{"name": 1}\n',
        '["step"]\n',
        '{"step": "1"}\n',
    ],
)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, text) -> None:
    file = tmp_path / "deep" / "metrics.jsonl"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ValueError, match=r"metrics_file=.*something else than metrics \(line 1\)"):
        open_log(tmp_path)
    assert file.read_text() == text


def test_a_file_that_cannot_be_written_is_named(tmp_path) -> None:
    (tmp_path / "deep").write_text("in the way")
    with pytest.raises(ValueError, match=r"metrics_file=.*cannot be written"):
        open_log(tmp_path)


def test_tensorboard_gets_upstreams_names(tmp_path) -> None:
    with open_log(tmp_path, board=True) as log:
        log.step(record(7, extras={"learning/param_norm": 3.0}))
        log.evaluation(EvalRecord(step=7, seconds=0.5, total_weights=12, loss=2.0))
    got = scalars(tmp_path)
    assert {tag for tag, _ in got} == {
        "learning/loss",
        "learning/lm_loss",
        "learning/perplexity",
        "learning/grad_norm",
        "learning/param_norm",
        "learning/current_learning_rate",
        "learning/total_weights",
        "perf/step_time_seconds",
        "perf/per_device_tflops_per_sec",
        "perf/per_device_tokens_per_sec",
        "perf/mfu",
        "eval/avg_loss",
        "eval/avg_perplexity",
        "eval/total_weights",
        "eval/seconds",
    }
    assert got["learning/current_learning_rate", 7] == pytest.approx(3e-4)
    assert got["eval/avg_loss", 7] == 2.0


def test_an_evaluation_line_reads_as_upstreams(lines, tmp_path) -> None:
    with open_log(tmp_path) as log:
        log.evaluation(EvalRecord(step=49, seconds=1.5, total_weights=4096, loss=1.9876543))
    assert lines.messages == [
        "eval metrics after step: 49, loss=1.98765, total_weights=4096, perplexity=7.298, "
        "seconds=1.500"
    ]


def test_other_processes_write_nothing(lines, tmp_path) -> None:
    with open_log(tmp_path, board=True, writes=False) as log:
        log.step(record(0))
        log.evaluation(EvalRecord(step=0, seconds=1.0, total_weights=1, loss=1.0))
    assert lines.messages == []
    assert list(tmp_path.iterdir()) == []


def test_tokens_of_each_source_are_told_at_evaluations_and_at_the_end(lines, tmp_path) -> None:
    with open_log(tmp_path, period=1000) as log:
        log.step(record(1, source_tokens={"web": 1500, "books": 500}))
        log.evaluation(EvalRecord(step=1, seconds=1.5, total_weights=4096, loss=1.9))
        log.step(record(2, source_tokens={"web": 3000, "books": 1000}))
    told = [line for line in lines.messages if line.startswith("tokens of each source")]
    assert told == [
        "tokens of each source: web 1,500 (75.00%), books 500 (25.00%)",
        "tokens of each source: web 3,000 (75.00%), books 1,000 (25.00%)",
    ]
    assert history(tmp_path)[2]["data/tokens/web"] == 3000

import json
import math

import pytest

from maxtext.config.load import load
from maxtext.metrics.curves import pieces, read_run, run_names
from maxtext.metrics.step_log import EvalRecord, StepLog, StepRecord, Workload

WORKLOAD = Workload(steps=100, tokens_per_device=8.0, flops_per_device=1.0, peak_flops=None)


def write(folder, start, end, *, board, loss=1.0):
    """Steps of one process of a run, as training writes them."""
    where = {"metrics_file": "" if board else str(folder / "metrics.jsonl")}
    argv = [f"enable_tensorboard={str(board).lower()}", f"metrics_file={where['metrics_file']}"]
    config = load(argv, {}).config.metrics
    keys = {"tensorboard_dir": str(folder / "tensorboard"), "start_step": start, "writes": True}
    with StepLog(config, WORKLOAD, **keys) as log:
        for step in range(start, end):
            log.step(
                StepRecord(
                    step=step,
                    seconds=0.5,
                    total_weights=8,
                    loss=loss + step,
                    lm_loss=1.0,
                    grad_norm=math.nan if step == 3 else 2.0,
                    learning_rate=0.1,
                    batch_digest="00ff",
                )
            )
        log.evaluation(EvalRecord(step=end - 1, seconds=1.0, total_weights=9, loss=loss))


@pytest.fixture(params=[False, True], ids=["metrics file", "TensorBoard"])
def board(request):
    return request.param


def age(folder):
    """TensorBoard's files are named by the second: an earlier start had an earlier one."""
    for number, file in enumerate(sorted((folder / "tensorboard").glob("events*"))):
        file.rename(file.with_name(f"events.out.tfevents.{number:010}.host"))


def test_a_resumed_run_is_one_curve_and_steps_done_again_count_once(tmp_path, board) -> None:
    write(tmp_path, 0, 6, board=board)
    age(tmp_path)
    # Killed after step 5, resumed from the checkpoint of step 4.
    write(tmp_path, 4, 8, board=board, loss=50.0)
    curves = read_run(tmp_path)
    want = {step: 1.0 + step for step in range(4)} | {step: 50.0 + step for step in range(4, 8)}
    assert curves["learning/loss"] == want
    assert curves["eval/avg_loss"] == {7: 50.0}
    assert curves["perf/per_device_tokens_per_sec"] == dict.fromkeys(range(8), 16.0)
    assert math.isnan(curves["learning/grad_norm"][3])
    assert "batch_digest" not in curves


def test_a_file_or_the_folder_of_the_files_is_a_run_too(tmp_path, board) -> None:
    write(tmp_path, 0, 3, board=board)
    path = next((tmp_path / "tensorboard").iterdir()) if board else tmp_path / "metrics.jsonl"
    assert read_run(path) == read_run(path.parent) == read_run(tmp_path)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_what_a_killed_run_left_half_written_is_left_out(tmp_path, board, cut) -> None:
    write(tmp_path, 0, 3, board=board)
    whole = read_run(tmp_path)
    path = next((tmp_path / "tensorboard").iterdir()) if board else tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_run(tmp_path)["learning/loss"] == whole["learning/loss"]


def test_of_a_step_that_is_there_twice_the_last_counts(tmp_path) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = [{"step": 1, "loss": 5.0}, {"step": 2, "loss": 4.0}, {"step": 1, "loss": 3.0}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_run(file) == {"learning/loss": {1: 3.0, 2: 4.0}}


def test_a_curve_is_cut_where_steps_are_missing() -> None:
    curve = {step: float(step) for step in (0, 1, 2, 3, 9, 10, 11)}
    assert [steps for steps, _ in pieces(curve)] == [[0, 1, 2, 3], [9, 10, 11]]
    # The last evaluation comes early, and one that is missing is no gap.
    assert len(pieces(dict.fromkeys((199, 399, 799, 999, 1010), 1.0))) == 1
    assert pieces({7: 1.0}) == [([7], [1.0])]
    assert pieces({}) == [([], [])]


def test_runs_of_one_name_are_told_apart(tmp_path) -> None:
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    assert run_names(paths) == ["a/run", "b/run"]
    assert run_names([paths[0], tmp_path / "c.jsonl"]) == ["run", "c"]
    assert len(set(run_names([paths[0], paths[0]]))) == 2

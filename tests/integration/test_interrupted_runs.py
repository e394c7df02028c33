"""Runs that are killed, interrupted or spread over processes, each as a user starts them."""

import fcntl
import json
import math
import os
import random
import signal
import socket
import time

import pytest

pytestmark = pytest.mark.slow
SAVES = {"enable_checkpointing": True, "run_name": "run"}
KILLS = 20


def wait_for_line(runs, process, number) -> None:
    """Returns once the metrics file has this many lines."""
    path = runs.folder / "run.jsonl"
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < number:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def data(documents):
    return {"dataset_type": "grain", "grain_train_files": documents}


def test_a_run_killed_in_and_around_saves_loses_only_steps_since(runs, documents) -> None:
    keys = data(documents) | {"steps": 240, "checkpoint_period": 1, **SAVES}
    want = runs.fresh("straight", **keys | {"run_name": "straight"})
    draw = random.Random(11)
    path = runs.folder / "run.jsonl"
    for _ in range(KILLS):
        process = runs.start("run", **keys)
        steps = runs.checkpoints("run") if (runs.output / "run").is_dir() else []
        wait_for_line(runs, process, max(steps, default=0) + 1 if path.exists() else 1)
        time.sleep(draw.uniform(0, 0.3))
        assert process.poll() is None, "the run must not be done before the last kill"
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert runs.fresh("run", **keys) == want
    assert max(runs.checkpoints("run")) == 240


def test_a_run_killed_around_local_saves_goes_on_from_the_newest(runs, documents, tmp_path) -> None:
    local = {"local_checkpoint_directory": tmp_path / "ssd", "local_checkpoint_period": 1}
    keys = data(documents) | {"steps": 120, "checkpoint_period": 30, **SAVES, **local}
    want = runs.fresh("straight", **keys | {"run_name": "straight"})
    draw = random.Random(5)
    folders = [tmp_path / "ssd" / "run", runs.output / "run" / "checkpoints"]
    newest = 0
    for _ in range(3):
        process = runs.start("run", **keys)
        wait_for_line(runs, process, newest + 1)
        time.sleep(draw.uniform(0, 0.3))
        assert process.poll() is None, "the run must not be done before the last kill"
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        assert newest == 0 or f"resumed from step {newest} " in out
        names = [path.name for folder in folders if folder.exists() for path in folder.iterdir()]
        newest = max((int(name) for name in names if name.isdecimal()), default=0)
    assert runs.fresh("run", **keys) == want
    assert [path.name for path in folders[0].iterdir()] == ["119"]
    assert runs.checkpoints("run") == [60, 90, 120]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_once_and_the_run_goes_on_equal(
    runs, documents, number, code, workers
) -> None:
    keys = data(documents) | {"grain_worker_count": workers, "learning_rate_schedule_steps": 4000}
    process = runs.start("run", steps=4000, **keys, **SAVES)
    wait_for_line(runs, process, 3)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    out, err = runs.finish(process, code=code)
    assert "Traceback" not in err
    done = len(runs.steps("run"))
    assert runs.checkpoints("run") == [done]
    assert out.count("checkpoint of step") == 1
    want = runs.fresh("straight", steps=done + 3, **keys)
    assert runs.fresh("run", steps=done + 3, **keys, **SAVES) == want


def test_a_signal_ends_a_long_evaluation(runs) -> None:
    process = runs.start("run", steps=9, eval_interval=2, eval_steps=2**31 - 1, **SAVES)
    wait_for_line(runs, process, 2)
    process.send_signal(signal.SIGTERM)
    _, err = runs.finish(process, code=143)
    assert not err
    assert runs.checkpoints("run") == [2]
    assert runs.evaluations("run") == []


def test_a_second_ctrl_c_ends_at_once(runs) -> None:
    process = runs.start("run", steps=100_000, **SAVES)
    wait_for_line(runs, process, 3)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("signal 2: stopping"):
        assert process.poll() is None
    # The save has to compile its checksums first: it is under way for long enough.
    process.send_signal(signal.SIGINT)
    _, err = runs.finish(process, code=130)
    assert err.endswith("interrupted\n")
    assert "Traceback" not in err


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start_two(runs, name, *, second=None, **keys):
    """Two processes with four devices each; `second` has other keys."""
    environ = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "JAX_NUM_PROCESSES": "2",
    }
    return [
        runs.start(name, devices=4, environ=environ | {"JAX_PROCESS_ID": str(index)}, **one)
        for index, one in enumerate((keys, keys | (second or {})))
    ]


def two_processes(runs, name, *, code=0, **keys):
    """What two processes wrote to stderr."""
    return [runs.finish(process, code=code)[1] for process in start_two(runs, name, **keys)]


def test_two_processes_take_the_steps_of_one(runs) -> None:
    keys = {"steps": 6, "gradient_clipping_threshold": 0, "learning_rate_schedule_steps": 6}
    want = runs.here("one", **keys)
    two_processes(runs, "run", **keys | {"steps": 3}, **SAVES)
    assert runs.checkpoints("run") == [3]
    two_processes(runs, "run", **keys, **SAVES)
    got = runs.steps("run")
    assert [step["step"] for step in got] == list(range(6))
    for ours, theirs in zip(got, want, strict=True):
        assert ours["total_weights"] == theirs["total_weights"]
        assert math.isclose(ours["loss"], theirs["loss"], rel_tol=1e-5)
        assert math.isclose(ours["grad_norm"], theirs["grad_norm"], rel_tol=1e-4)


def test_a_signal_to_one_of_two_processes_stops_both_after_the_same_step(runs) -> None:
    first, second = start_two(runs, "run", steps=100_000, **SAVES)
    wait_for_line(runs, first, 3)
    second.send_signal(signal.SIGTERM)
    for process in (first, second):
        _, err = runs.finish(process, code=143)
        assert "Traceback" not in err
    assert runs.checkpoints("run") == [len(runs.steps("run"))]


def test_two_processes_resume_from_the_local_checkpoint_or_the_one_before(runs, tmp_path) -> None:
    local = {"local_checkpoint_directory": tmp_path / "ssd", "local_checkpoint_period": 1}
    keys = SAVES | local | {"checkpoint_period": 4, "learning_rate_schedule_steps": 8}
    two_processes(runs, "run", steps=6, save_checkpoint_on_completion=False, **keys)
    assert runs.checkpoints("run") == [4]
    assert [path.name for path in (tmp_path / "ssd" / "run").iterdir()] == ["5"]
    want = runs.steps("run")
    (tmp_path / "ssd" / "run" / "5" / "state" / "manifest.ocdbt").unlink()
    two_processes(runs, "run", steps=7, save_checkpoint_on_completion=False, **keys)
    assert runs.steps("run")[:6] == want
    assert runs.checkpoints("run") == [4]
    assert [path.name for path in (tmp_path / "ssd" / "run").iterdir()] == ["6"]
    assert [path.name for path in (tmp_path / "ssd" / "run_set_aside").iterdir()] == ["5"]


def test_data_that_turn_bad_in_one_process_end_both(runs, tmp_path) -> None:
    documents = [json.dumps({"text": "to be or not to be"})] * 4000
    # Documents are dealt in turn: the damaged one is the second process's.
    documents[1501] = "{"
    (tmp_path / "bad.jsonl").write_text("\n".join(documents) + "\n")
    keys = data(tmp_path / "bad.jsonl") | {"steps": 1000, "enable_data_shuffling": False}
    first, second = two_processes(runs, "run", code=2, **keys, **SAVES)
    assert "bad.jsonl:1502: invalid JSON" in second
    assert "the data cannot be read in process 1, which says why" in first
    assert "Traceback" not in first + second
    assert runs.checkpoints("run") == [len(runs.steps("run"))] != [0]


def test_data_that_only_one_process_cannot_open_end_both(runs, documents, tmp_path) -> None:
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(b"PAR1 and no more")
    bad = {"grain_train_files": cut}
    first, second = two_processes(runs, "run", code=2, second=bad, **data(documents), **SAVES)
    assert "cut.parquet" in second
    assert "process 1 of 2 cannot go on and says why" in first
    assert "Traceback" not in first + second


def test_a_checkpoint_that_only_one_process_cannot_write_ends_both(runs) -> None:
    # Only the first process takes the folder's lock.
    folder = runs.output / "run" / "checkpoints"
    folder.mkdir(parents=True)
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    first, second = two_processes(runs, "run", code=2, steps=3, **SAVES)
    os.close(held)
    assert "another process writes to" in first
    assert "process 0 of 2 cannot go on and says why" in second
    assert "Traceback" not in first + second


def test_workers_change_nothing_over_two_resumes(runs, documents) -> None:
    keys = data(documents) | {"learning_rate_schedule_steps": 60}
    want = runs.fresh("straight", steps=60, **keys)
    for end, workers in ((7, 2), (31, 0), (60, 2)):
        got = runs.fresh("run", steps=end, grain_worker_count=workers, **keys, **SAVES)
    assert got == want

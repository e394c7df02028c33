"""Worker processes: the same stream, a clean end, and none left behind however the parent ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Prints a digest a line, and the state after the last batch; waits where asked to, after a batch.
PROGRAM = """
import json, sys, time
import yaml
from maxtext.config.schema_training import DataConfig
from maxtext.data.batch import Shard
from maxtext.data.iterators import make_train_iterator
from maxtext.data.prefetch import DevicePrefetcher

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    base = yaml.safe_load(open(asked["base"]).read())
    names = [field.alias or name for name, field in DataConfig.model_fields.items()]
    values = {name: base[name] for name in names} | asked["keys"]
    values |= {name: tuple(one) for name, one in values.items() if isinstance(one, list)}
    iterator = make_train_iterator(
        DataConfig(**values), rows=3, shard=Shard(0, 1), vocab_size=256
    )
    if asked["state"]:
        iterator.set_state(asked["state"])
    prefetcher = DevicePrefetcher(iterator, place=lambda batch: batch, size=2)
    try:
        for _ in range(asked["batches"]):
            loaded = next(prefetcher)
            print(loaded.digest, flush=True)
        print(json.dumps(loaded.state), flush=True)
        if asked["wait"]:
            time.sleep(600)
    finally:
        prefetcher.close()
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path):
    """Starts the program in a session of its own, as a shell does for a command."""
    texts = [chr(ord("A") + number) * (1 + 37 * number) for number in range(26)]
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    running = []

    def start(*, workers, batches, state=None, wait=False, files=path):
        keys = {
            "dataset_type": "grain",
            "grain_train_files": str(files),
            "grain_worker_count": workers,
            "max_target_length": 64,
        }
        asked = {"keys": keys, "batches": batches, "state": state, "wait": wait}
        asked["base"] = str(ROOT / "configs" / "base.yml")
        process = subprocess.Popen(
            [sys.executable, str(program), json.dumps(asked)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def output(process) -> tuple[list[str], dict]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err == ""
    *digests, state = out.splitlines()
    return digests, json.loads(state)


def processes_of(session: int) -> set[int]:
    """Processes of a session that still run, by Linux's /proc."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.add(int(entry.name))
    return found


def wait_until_gone(session: int) -> None:
    deadline = time.monotonic() + 30
    while left := processes_of(session):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)


def wait_for_batch(process) -> None:
    lines = [process.stdout.readline() for _ in range(3)]
    assert all(lines), process.communicate()
    assert len(processes_of(process.pid)) >= 3, "parent and two workers"


def test_a_run_resumes_twice_in_fresh_processes_with_any_number_of_workers(start):
    batches = 80
    whole, state = output(start(workers=0, batches=batches))
    assert state["document"] > 26, "past the first epoch"
    assert output(start(workers=2, batches=batches))[0] == whole
    one, state = output(start(workers=2, batches=7))
    assert state["offset"] > 0, "inside a document"
    two, state = output(start(workers=2, batches=50, state=state))
    three, _ = output(start(workers=0, batches=batches - 57, state=state))
    assert one + two + three == whole


def test_ctrl_c_leaves_no_worker_and_one_traceback(start):
    process = start(workers=2, batches=2, wait=True)
    wait_for_batch(process)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert err.count("Traceback") == 1, err
    assert err.rstrip().endswith("KeyboardInterrupt")
    wait_until_gone(process.pid)


def test_workers_end_when_their_parent_is_killed(start):
    process = start(workers=2, batches=2, wait=True)
    wait_for_batch(process)
    process.kill()
    wait_until_gone(process.pid)


def test_a_damaged_record_in_a_worker_is_named_and_ends_all_workers(start, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "a"}\n' * 500 + '{"text": 1}\n' + '{"text": "b"}\n' * 500)
    process = start(workers=2, batches=500, files=path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "bad.jsonl:501: column 'text' is int, not text" in err
    wait_until_gone(process.pid)

import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("saving_process.py")


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env={**os.environ, "XLA_FLAGS": "", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def last(output: str, word: str) -> int:
    """The last step that a process said to have saved or resumed from."""
    steps = [int(line.split()[1]) for line in output.splitlines() if line.startswith(f"{word} ")]
    return max(steps, default=0)


@pytest.mark.slow
def test_a_run_killed_at_any_moment_resumes_from_its_last_committed_step(tmp_path: Path) -> None:
    moments = random.Random(0)
    committed = 0
    for _ in range(20):
        process = start(tmp_path / "checkpoints", 2048, 100_000)
        assert process.stdout
        said = ""
        for line in process.stdout:  # saves begin here; kill within the next few
            said += line
            if line.startswith("saving"):
                break
        try:
            rest, _ = process.communicate(timeout=moments.uniform(0, 1.5))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            rest, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL
        said += rest
        # Never an older one; a newer one if it died between the rename and its print.
        assert last(said, "resumed") in (committed, committed + 1), said
        committed = max(last(said, "saved"), last(said, "resumed"))
    out, errors = start(tmp_path / "checkpoints", 2048, 1).communicate(timeout=60)
    assert last(out, "resumed") in (committed, committed + 1), errors
    assert committed > 10
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    newest = last(out, "saved")
    assert names == {str(newest - 1), str(newest)}


@pytest.mark.slow
def test_a_full_disk_is_one_error_and_loses_no_earlier_step(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    out, _ = start(directory, 2048, 2).communicate(timeout=60)
    assert last(out, "saved") == 2
    process = start(directory, 2048, 2, 2**20)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == (
        f"checkpoint step 3 could not be written to {directory} (File too large); "
        "the newest one there is step 2"
    )
    assert {path.name for path in directory.iterdir()} == {"1", "2"}


@pytest.mark.slow
def test_two_processes_save_and_restore_each_its_own_place_in_the_data(tmp_path: Path) -> None:
    for resumed in (0, 2):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        flags = {
            "NPROC": "16",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        }
        processes = [
            start(tmp_path / "checkpoints", 64, 2, 0, number, port, **flags) for number in (0, 1)
        ]
        try:
            outputs = [process.communicate(timeout=120) for process in processes]
        finally:
            for process in processes:
                process.kill()
        for process, (out, errors) in zip(processes, outputs, strict=True):
            assert process.returncode == 0, errors
            assert last(out, "resumed") == resumed
            assert last(out, "saved") == resumed + 2
    alone = start(tmp_path / "checkpoints", 64, 1)
    out, errors = alone.communicate(timeout=60)
    assert alone.returncode == 0, errors
    assert last(out, "resumed") == 4

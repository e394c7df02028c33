"""Runs of the tiny model through the command line: in this process, or in a fresh one."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

T0 = Path(__file__).with_name("t0.yml")

# What two runs of the same steps may differ in.
_TIMES = ("seconds", "tflops_per_second_per_device", "tokens_per_second_per_device")


def _setting(key: str, value: object) -> str:
    return f"{key}={str(value).lower() if isinstance(value, bool) else value}"


def _without_times(record: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in record.items()
        if name not in (*_TIMES, "eval/seconds") and not name.startswith(("perf/", "goodput/"))
    }


@dataclasses.dataclass
class Runs:
    """Starts runs whose files lie in `folder`; a run's first argument names its metrics file."""

    folder: Path
    started: list[subprocess.Popen[str]] = dataclasses.field(default_factory=list)

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def argv(self, name: str, **keys: object) -> list[str]:
        own = {"metrics_file": self.folder / f"{name}.jsonl", "base_output_directory": self.output}
        return [str(T0), *(_setting(key, value) for key, value in (own | keys).items())]

    def code(self, name: str, **keys: object) -> int:
        """The exit code of a run in this process."""
        from maxtext import train

        try:
            return train.main(self.argv(name, **keys))
        except SystemExit as stop:
            if isinstance(stop.code, int):
                return stop.code
            sys.stderr.write(f"{stop.code}\n")
            return 1

    def here(self, name: str, **keys: object) -> list[dict[str, Any]]:
        """What a run in this process that ends well logged of its steps."""
        assert self.code(name, **keys) == 0
        return self.steps(name)

    def start(
        self, name: str, *, devices: int = 8, environ: dict[str, str] | None = None, **keys: object
    ) -> subprocess.Popen[str]:
        """A run in a process of its own, the leader of its group as under a shell."""
        flags = f"--xla_force_host_platform_device_count={devices}"
        process = subprocess.Popen(
            [sys.executable, "-m", "maxtext.train", *self.argv(name, **keys)],
            env={**os.environ, "XLA_FLAGS": flags, **(environ or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str], *, code: int = 0) -> tuple[str, str]:
        """What a process printed that has to end with `code`."""
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, err or out
        return out, err

    def fresh(self, name: str, *, devices: int = 8, **keys: object) -> list[dict[str, Any]]:
        """As `here`, in a fresh process."""
        self.finish(self.start(name, devices=devices, **keys))
        return self.steps(name)

    def records(self, name: str) -> list[dict[str, Any]]:
        """All lines of a metrics file, without times."""
        lines = (self.folder / f"{name}.jsonl").read_text().splitlines()
        return [_without_times(json.loads(line)) for line in lines]

    def steps(self, name: str) -> list[dict[str, Any]]:
        return [record for record in self.records(name) if "loss" in record]

    def evaluations(self, name: str) -> list[dict[str, Any]]:
        return [record for record in self.records(name) if "eval/avg_loss" in record]

    def checkpoints(self, run_name: str) -> list[int]:
        """The steps in a run's folder; any other name in there is a failure."""
        folder = self.output / run_name / "checkpoints"
        return sorted(int(entry.name) for entry in folder.iterdir()) if folder.is_dir() else []

    def kill(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """Runs in a folder of this test."""
    import jax

    precision = jax.config.jax_default_matmul_precision
    made = Runs(tmp_path)
    yield made
    made.kill()
    jax.config.update("jax_default_matmul_precision", precision)


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred documents of 0 to 90 letters, 4 kB in all."""
    draw = random.Random(7)
    texts = ["".join(draw.choices("etaoin shrdlu\n", k=draw.randrange(91))) for _ in range(100)]
    path = tmp_path_factory.mktemp("data") / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def refused(runs, capsys):
    """The error of a run that has to end with code 2 before it writes anything."""

    def refused(**keys):
        before = sorted(runs.folder.rglob("*"))
        code = runs.code(
            "bad", run_name="bad", enable_checkpointing=True, enable_tensorboard=True, **keys
        )
        err = capsys.readouterr().err
        assert code == 2, err
        assert err.startswith("error: ")
        assert err.count("error: ") == 1, err
        assert err.count("\n") <= 2, err
        assert "Traceback" not in err
        assert sorted(runs.folder.rglob("*")) == before
        return err

    return refused


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path

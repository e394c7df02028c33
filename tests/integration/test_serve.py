"""The server as a process of its own, with a model, as OpenAI's own client sees it."""

import dataclasses
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Far longer than what is done meanwhile takes.
LONG = {"max_tokens": 4000, "extra_body": {"ignore_eos": True}}
LENGTH = ("max_target_length=4096", "override_model_config=true")
KEYS = (*LENGTH, "max_num_seqs=4", "max_num_batched_tokens=32", "serve_warm_up=false")


@dataclasses.dataclass
class Process:
    """A server, and a client of it."""

    process: subprocess.Popen[str]
    url: str
    client: openai.OpenAI

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def metric(self, name: str) -> float:
        text = self.get("/metrics")[1].decode()
        found = re.search(rf"^maxtext_{name} (\S+)$", text, re.MULTILINE)
        assert found, text
        return float(found[1])

    def wait_for(self, name: str, value: float) -> None:
        deadline = time.monotonic() + 60
        while self.metric(name) != value:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def wait_for_drain(self) -> None:
        deadline = time.monotonic() + 60
        while self.get("/health") != (503, b'{"status":"draining"}'):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stream(self, **keys):
        """A completion that has begun."""
        stream = self.client.completions.create(model="run", prompt="to be", stream=True, **keys)
        return next(stream), stream

    def end(self, code: int) -> tuple[str, str]:
        """What a process printed that has to end with `code`."""
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == code, err
        return out, err


def program(name: str, *argv: str) -> subprocess.Popen[str]:
    """A program of ours, on one device."""
    return subprocess.Popen(
        [sys.executable, "-m", f"maxtext.{name}", *argv],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> list[str]:
    """The command line of a run that has taken a few large steps."""
    argv = [str(Path(__file__).with_name("t0.yml")), "run_name=run"]
    argv.append(f"base_output_directory={tmp_path_factory.mktemp('run')}")
    steps = ["steps=4", "learning_rate=0.02", "enable_checkpointing=true"]
    with program("train", *argv, *steps) as process:
        _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return argv


@pytest.fixture
def start(trained) -> Iterator:
    """Starts servers, which end with the test."""
    started: list[Process] = []

    def begin(*argv: str) -> Process:
        process = program("serve", *trained, *KEYS, "serve_port=0", *argv)
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        line = next((one for one in lines if one.startswith("serving run on http://127")), "")
        url = line.split()[-1] if line else ""
        keys = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "timeout": 120}
        started.append(Process(process, url, openai.OpenAI(**keys)))
        assert url, process.communicate()
        return started[-1]

    yield begin
    for one in started:
        one.client.close()
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def test_a_server_answers_streams_and_drains(start, trained, tmp_path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    server = start(f"chat_template={template}")
    pages = server.metric("pages_free")

    # Text is that of the command line, from chats and streams too.
    with program("decode", *trained, *KEYS, "prompt=to be", "max_new_tokens=12") as process:
        want = process.communicate(timeout=240)[0].removeprefix("to be").removesuffix("\n")
    assert want
    keys = {"model": "run", "temperature": 0, "max_tokens": 12}
    create = server.client.completions.create
    assert create(prompt="to be", **keys).choices[0].text == want
    parts = create(prompt="to be", stream=True, n=3, **keys)
    texts = ["", "", ""]
    for part in parts:
        texts[part.choices[0].index] += part.choices[0].text
    assert texts == [want] * 3
    chat = server.client.chat.completions.create
    assert chat(messages=[{"role": "user", "content": "to be"}], **keys).choices[0].message.content

    # Drawn text depends on the seed alone, whatever runs beside it.
    drawn = {"model": "run", "prompt": "to be", "max_tokens": 20, "seed": 3}
    alone = create(**drawn).choices[0].text
    _, beside = server.stream(**LONG)
    assert create(**drawn).choices[0].text == alone
    assert create(**drawn | {"seed": 4}).choices[0].text != alone

    # Clients that leave, one of which still waits, give back their pages.
    streams = [server.stream(**LONG)[1] for _ in range(3)]
    waiting = server.client.completions.create(model="run", prompt="a", stream=True, **LONG)
    for stream in (beside, *streams, waiting):
        stream.close()
    server.wait_for("requests_open", 0)
    assert server.metric("pages_free") == pages

    with pytest.raises(openai.BadRequestError, match="context length is 4096 tokens"):
        create(model="run", prompt="a" * 5000)

    # The first signal lets what runs come to its end.
    first, stream = server.stream(**LONG)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for_drain()
    with pytest.raises(openai.InternalServerError, match="shutting down"):
        create(model="run", prompt="a")
    texts = [one.choices[0] for one in stream]
    assert texts[-1].finish_reason == "length"
    assert first.choices[0].text + "".join(one.text for one in texts)
    assert server.end(0) == ("", "")


def test_a_second_signal_ends_at_once(start) -> None:
    server = start()
    _, stream = server.stream(**LONG)
    server.process.send_signal(signal.SIGINT)
    server.wait_for_drain()
    server.process.send_signal(signal.SIGINT)
    assert server.end(130) == ("", "interrupted\n")
    stream.close()


def test_clients_that_hang_up_disturb_no_others() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "serve.py"), "--model", "t0"]
    command += ["--clients", "24", "--sequences", "8", "--streams", "90", "--new", "20"]
    # Few shapes, all of which are compiled before.
    command.append("max_num_batched_tokens=64")
    environ = {**os.environ, "XLA_FLAGS": ""}
    done = subprocess.run(
        command, env=environ, stdout=subprocess.PIPE, text=True, timeout=240, check=True
    )
    found = json.loads(done.stdout)
    assert found["first_errors"] == []
    assert (found["errors"], found["leaked_pages"]) == (0, 0)
    assert (found["ended"], found["hung_up"]) == (60, 30)
    # After the same load once before: a request that left 100 kB behind would show.
    assert found["memory_growth_mib"] < 8

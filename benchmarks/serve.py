"""A server under many clients: streams that end, streams that are hung up, pages and memory.

    python benchmarks/serve.py [--model 20m] [--clients 200] [--seconds 60] [KEY=VALUE ...]

One JSON line. Clients are OpenAI's, asynchronous and in this process; each streams one completion
after the other, and hangs up midway in every third. The same load runs twice: what is measured is
the second time, when all steps are compiled and all buffers have been as large as they get.
`errors` counts what went wrong, both times, for those that did not hang up: an exception, or a
stream that ended early. `leaked_pages` are not free once all clients have left; `memory_mib` is the
server's resident memory at the start of the second time, at each quarter of it and at its end.
"""

import argparse
import asyncio
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import openai
from environment import cpu_environ
from train_step import MODELS

EVERY = 3
MODEL = "run"
# The word that a prompt begins with differs: not all of it is computed once for all.
PROMPT = "number {}: to be, or not to be, that is the question"


@dataclass
class Found:
    """What the clients saw."""

    ended: int = 0
    hung_up: int = 0
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)


@contextmanager
def server(model: str, argv: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of random weights, ready, and its address; SIGTERM ends it with exit code 0."""
    environ = cpu_environ()
    with tempfile.TemporaryDirectory() as folder:
        keys = [f"base_output_directory={folder}", f"run_name={MODEL}", "log_config=false"]
        sizes = " ".join(MODELS[model]).split()
        keys += [one for one in sizes if not one.startswith("max_target_length")]
        keys.append("max_target_length=256")
        train = [*keys, "steps=1", "dataset_type=synthetic", "per_device_batch_size=1"]
        command = [sys.executable, "-m", "maxtext.train", *train]
        subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True)
        command = [sys.executable, "-m", "maxtext.serve", *keys, "serve_port=0", *argv]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith("serving "))
            try:
                yield process, line.split()[-1]
            finally:
                process.send_signal(signal.SIGTERM)
        if process.returncode:
            sys.exit(f"the server ended with {process.returncode}")


def metric(url: str, name: str) -> float:
    """A number of /metrics."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        found = re.search(rf"^maxtext_{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


async def ask(client: openai.AsyncOpenAI, number: int, new: int, found: Found) -> None:
    """One streamed completion, the whole or half of it."""
    leaves = number % EVERY == 0
    began, seen = time.perf_counter(), 0
    try:
        stream = await client.completions.create(
            model=MODEL,
            prompt=PROMPT.format(number),
            max_tokens=new,
            seed=number,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        async with stream:
            async for part in stream:
                if part.usage is not None:
                    found.tokens += part.usage.completion_tokens
                    found.ended += 1
                    if part.usage.completion_tokens != new:
                        found.errors.append(f"{part.usage.completion_tokens} tokens of {new}")
                    return
                if not seen:
                    found.first.append(time.perf_counter() - began)
                seen += 1
                if leaves and seen == new // 4:
                    found.hung_up += 1
                    return
        found.errors.append("a stream without an end")
    except openai.OpenAIError as error:
        found.errors.append(f"{type(error).__name__}: {error}")


async def soak(url: str, pid: int, options: argparse.Namespace) -> tuple[Found, list[float]]:
    """What the clients see until the end, and the server's memory, once a second and then."""
    found, memory = Found(), [resident_mib(pid)]
    numbers = iter(range(options.streams or 10**9))
    end = time.perf_counter() + (options.seconds if not options.streams else 10**9)
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600
    ) as client:

        async def go_on() -> None:
            for number in numbers:
                await ask(client, number, options.new, found)
                if time.perf_counter() > end:
                    return

        async def watch() -> None:
            while True:
                await asyncio.sleep(1)
                memory.append(resident_mib(pid))

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(go_on() for _ in range(options.clients)))
        watching.cancel()
    return found, [*memory, resident_mib(pid)]


def measure(options: argparse.Namespace) -> dict[str, object]:
    """The result."""
    argv = [f"max_num_seqs={options.sequences}", f"serve_max_waiting={options.clients}"]
    argv += options.keys
    with server(options.model, argv) as (process, url):
        pages = metric(url, "pages_free")
        warm, _ = asyncio.run(soak(url, process.pid, options))
        began = time.perf_counter()
        found, memory = asyncio.run(soak(url, process.pid, options))
        seconds = time.perf_counter() - began
        while metric(url, "requests_open"):
            time.sleep(0.05)
        leaked = pages - metric(url, "pages_free")
    errors = warm.errors + found.errors
    at = [memory[quarter * (len(memory) - 1) // 4] for quarter in range(5)]
    return {
        "benchmark": "serve",
        "model": options.model,
        "clients": options.clients,
        "sequences": options.sequences,
        "ended": found.ended,
        "hung_up": found.hung_up,
        "errors": len(errors),
        "first_errors": errors[:3],
        "leaked_pages": int(leaked),
        "seconds": round(seconds, 1),
        "tokens_per_second": round(found.tokens / seconds, 1),
        "median_first_token_seconds": round(statistics.median(found.first), 3),
        "memory_mib": [round(mib, 1) for mib in at],
        "memory_growth_mib": round(at[-1] - at[0], 1),
    }


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="settings of the server")
    parser.add_argument("--model", choices=MODELS, default="20m")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--streams", type=int, help="end after so many, whatever the time")
    parser.add_argument("--new", type=int, default=64)
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()

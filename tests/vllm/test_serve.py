"""`vllm serve` with our model, as OpenAI's own client sees it."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import jax
import numpy as np
import openai
import pytest

from maxtext import convert, decode
from maxtext.integrations.vllm.worker import EXTENSION
from tiny import LENGTH
from tiny_engine import tiny_served, weights
from vllm_checkpoints import write_checkpoint

NEW, PROMPTS = 12, ("to be", "or not to", "be")


@dataclasses.dataclass
class Server:
    """A server, a client of it, and the run whose newest checkpoint it serves."""

    process: subprocess.Popen[bytes]
    url: str
    client: openai.OpenAI
    run: Path
    log: Path

    def post(self, path: str, **body: str) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=120)

    def texts(self) -> list[str]:
        """What it goes on with."""
        create = self.client.completions.create
        keys = {"model": "t0", "temperature": 0, "max_tokens": NEW}
        return [whole(create(prompt=prompt, **keys).choices[0].text) for prompt in PROMPTS]


def whole(text: str) -> str:
    """Without what a character at its end lacks, which vLLM keeps back and we show."""
    return text.rstrip("\N{REPLACEMENT CHARACTER}")


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    """A server as the page of vLLM has it."""
    run, folder, template = tmp_path / "run", tmp_path / "hf", tmp_path / "chat.jinja"
    write_checkpoint(run)
    assert convert.main(["to_hf", str(run), str(folder)]) == 0
    template.write_text("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    additional = {"maxtext": [f"load_parameters_path={run}", "jax_cache_dir="]}
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(folder)]
    command += ["--config-format", "maxtext", "--additional-config", json.dumps(additional)]
    command += ["--served-model-name", "t0", "--host", "127.0.0.1", "--port", port]
    command += ["--max-model-len", str(LENGTH), "--max-num-seqs", "4", "--dtype", "float32"]
    command += ["--num-gpu-blocks-override", "64"]
    command += ["--worker-extension-cls", EXTENSION, "--chat-template", str(template)]
    environ = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "XLA_FLAGS": ""}
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environ, stdout=file, stderr=file, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
    try:
        wait_until_healthy(url, process, log)
        yield Server(process, url, client, run, log)
    finally:
        client.close()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 300
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)


def decoded(run: Path, capfd) -> list[str]:
    """What `maxtext.decode` goes on with, from the newest checkpoint of a run."""
    file = run.parent / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    argv = [f"load_parameters_path={run}", f"prompts_file={file}", f"max_new_tokens={NEW}"]
    capfd.readouterr()
    assert decode.main([*argv, "jax_cache_dir="]) == 0
    return [whole(json.loads(line)["text"]) for line in capfd.readouterr().out.splitlines()]


def test_our_model_is_served_takes_newer_weights_and_ends(server, capfd) -> None:
    want = decoded(server.run, capfd)
    assert server.texts() == want
    keys = {"model": "t0", "temperature": 0, "max_tokens": NEW}
    parts = server.client.completions.create(prompt=list(PROMPTS), stream=True, **keys)
    texts = [""] * len(PROMPTS)
    for part in parts:
        texts[part.choices[0].index] += part.choices[0].text
    assert list(map(whole, texts)) == want
    chat = server.client.chat.completions.create
    messages = [{"role": "user", "content": PROMPTS[0]}]
    assert whole(chat(messages=messages, **keys).choices[0].message.content or "") == want[0]

    # The run goes on and leaves another checkpoint, whose weights are taken.
    served = tiny_served()
    newer = jax.tree.map(lambda leaf: np.flip(leaf, -1), weights(served))
    write_checkpoint(server.run, step=7, params=newer)
    assert server.post("/collective_rpc", method="load_newest_weights").status_code == 200
    assert server.post("/reset_prefix_cache").status_code == 200
    newest = decoded(server.run, capfd)
    assert server.texts() == newest != want

    # Those of another model, of the same shapes, are not, and nothing changes.
    write_checkpoint(server.run, "rope_max_timescale=500", step=9)
    refused = server.post("/collective_rpc", method="load_newest_weights")
    assert refused.status_code == 500
    assert "another model: rope_max_timescale=500.0 instead of 10000.0" in refused.text
    assert server.texts() == newest

    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0, server.log.read_text()
    deadline = time.monotonic() + 60
    while is_there(group=server.process.pid):
        assert time.monotonic() < deadline, "its engine lives on"
        time.sleep(0.05)


def is_there(*, group: int) -> bool:
    """Whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True

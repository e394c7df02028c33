"""A server over an engine without a model, in a thread of this process."""

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import openai
import pytest
import uvicorn

from fake_engine import FakeEngine
from maxtext.config.load import load
from maxtext.data.chat_template import ChatTemplate
from maxtext.data.tokenizer import ByteTokenizer
from maxtext.decoding.encoding import Encoder
from maxtext.serving.app import make_app
from maxtext.serving.generation import Service
from maxtext.serving.http import Server, http_settings
from maxtext.serving.meters import Meters
from maxtext.serving.prompts import token_texts
from maxtext.serving.worker import Worker

MODEL = "tiny"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}|{% endfor %}"
    "{% if messages[0].role == 'tool' %}{{ raise_exception('no tool speaks first') }}{% endif %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclasses.dataclass
class Served:
    """A server that answers at `url`."""

    engine: FakeEngine
    service: Service
    url: str
    client: openai.OpenAI

    @property
    def worker(self) -> Worker:
        return self.service.worker

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def wait(self, wanted: str, value: object) -> None:
        """Returns once a property of the engine has a value."""
        deadline = time.monotonic() + 60
        while getattr(self.engine, wanted) != value:
            assert time.monotonic() < deadline, getattr(self.engine, wanted)
            time.sleep(0.002)


def make_service(engine: FakeEngine, *argv: str, template: str = TEMPLATE) -> Service:
    config = load([*argv, "model_name=default"], {}).config
    tokenizer = ByteTokenizer()
    worker = Worker(engine, max_open=engine.max_num_seqs + config.serve.serve_max_waiting)
    return Service(
        model=MODEL,
        config=config.serve,
        max_length=engine.max_length,
        encoder=Encoder(
            tokenizer,
            ChatTemplate(template, "here", ()) if template else None,
            add_bos=True,
            eos_ids=(ord("."),),
        ),
        texts=token_texts(tokenizer),
        worker=worker,
        meters=Meters(worker),
    )


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


@contextlib.contextmanager
def serve(*argv: str, engine: FakeEngine | None = None, template: str = TEMPLATE):
    """A server with settings of its own."""
    engine = engine or FakeEngine()
    service = make_service(engine, *argv, template=template)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(http_settings(make_app(service)))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            # Connections wait until it has started.
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with client_of(url) as client:
                yield Served(engine, service, url, client)
        finally:
            engine.gate.set()
            server.should_exit = True
            thread.join()


@pytest.fixture
def run_to_its_end():
    """Runs a server in this thread, and what its clients do in another, until it ends by itself."""

    def run(engine: FakeEngine, clients: Callable[[Served], None]) -> Served:
        service = make_service(engine)
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with client_of(url) as client:
                served = Served(engine, service, url, client)
                done: list[Future[None]] = []
                server = Server(service, lambda: done.append(pool.submit(clients, served)))
                server.run([listener])
                done[0].result()
        return served

    return run


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """One for all tests that leave it as it was."""
    with serve() as one:
        yield one


@pytest.fixture(scope="session")
def serving():
    """Makes servers with settings of their own."""
    return serve

"""The HTTP server and its life: signals, the end."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from typing import override

import uvicorn
from starlette.applications import Starlette

from maxtext.serving.app import make_app
from maxtext.serving.generation import Service

_KEEP_ALIVE_SECONDS = 60
_LAST_SECONDS = 5


def http_settings(app: Starlette) -> uvicorn.Config:
    """How uvicorn serves an application."""
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_LAST_SECONDS,
    )


class Server(uvicorn.Server):
    """uvicorn with our signals: it answers with 503 while the running requests end."""

    def __init__(self, service: Service, ready: Callable[[], None]) -> None:
        """A server of an application that is not running yet.

        Args:
            ready: Called once requests are answered.
        """
        super().__init__(http_settings(make_app(service)))
        self._worker, self._ready = service.worker, ready

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @override
    async def on_tick(self, counter: int) -> bool:
        idle = self._worker.draining and not self._worker.num_open
        if idle or self._worker.failure is not None:
            self.should_exit = True
        return await super().on_tick(counter)

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
        for one in before:
            loop.add_signal_handler(one, self._drain, one)
        try:
            yield
        finally:
            for one, handler in before.items():
                # That leaves the default behind, which ends a program that was told to ignore it.
                loop.remove_signal_handler(one)
                signal.signal(one, handler)

    def _drain(self, number: int) -> None:
        if self._worker.draining:
            # A step may take long, and no thread can be told to leave it.
            sys.stderr.write("interrupted\n")
            sys.stderr.flush()
            os._exit(128 + number)
        self._worker.draining = True

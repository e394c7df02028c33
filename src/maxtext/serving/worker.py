"""The engine in a thread of its own, and how the event loop talks to it."""

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol

from maxtext.decoding.requests import Event, Request
from maxtext.serving.errors import ApiError


class Steps(Protocol):
    """What the worker needs of `maxtext.decoding.engine.Engine`; see there."""

    @property
    def num_running(self) -> int:
        """Requests that hold pages."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests that wait for room."""
        ...

    @property
    def num_preempted(self) -> int:
        """How often a request lost its pages to an older one."""
        ...

    @property
    def num_free_pages(self) -> int:
        """Pages that no request uses."""
        ...

    @property
    def num_pages(self) -> int:
        """Pages in all."""
        ...

    def add(self, request: Request) -> int:
        """Queues a request; ValueError where it cannot be done."""
        ...

    def cancel(self, number: int) -> None:
        """Gives up a request; unknown ids are done."""
        ...

    def step(self) -> Sequence[Event]:
        """One pass of the model."""
        ...


@dataclasses.dataclass(frozen=True)
class Counts:
    """What the engine holds; see `Steps`."""

    running: int
    waiting: int
    preempted: int
    free_pages: int
    pages: int

    @classmethod
    def of(cls, engine: Steps) -> "Counts":
        """Its counts now."""
        return cls(
            running=engine.num_running,
            waiting=engine.num_waiting,
            preempted=engine.num_preempted,
            free_pages=engine.num_free_pages,
            pages=engine.num_pages,
        )


class Job:
    """Requests of one client that run together; iterated over, it gives what comes of which."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue()

    def put(self, place: int, event: Event) -> None:
        """Hands over what came of the request at `place`."""
        self._events.put_nowait((place, event))

    def accept(self, error: ValueError | None) -> None:
        """Tells that the engine took the requests, or why it did not."""
        if self.accepted.done():
            return
        if error is None:
            self.accepted.set_result(None)
        else:
            self.accepted.set_exception(ApiError(400, str(error)))

    def abandon(self) -> None:
        """Ends it: nothing comes any more."""
        if not self.accepted.done():
            self.accepted.set_exception(_stopped())
        self._events.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        """Places of requests with their events, until all are done.

        Raises:
            ApiError: The engine failed.
        """
        left = len(self.requests)
        while left:
            found = await self._events.get()
            if found is None:
                raise _stopped()
            left -= found[1].finish_reason is not None
            yield found


class Worker:
    """Runs an engine; all but `_work` and what it calls belongs to the event loop.

    Commands reach the thread by a queue, which it waits at when there is nothing to do; what each
    step gave goes back to the loop in one call.

    Attributes:
        counts: Of the engine, when it was last looked at.
        max_open: Requests that may run and wait.
        draining: Whether new requests are refused.
        failure: What ended the engine.
    """

    def __init__(self, engine: Steps, *, max_open: int) -> None:
        """A worker that has not started.

        Args:
            engine: Used by the worker's thread alone from now on.
            max_open: Requests that may run and wait.
        """
        self.counts = Counts.of(engine)
        self.max_open = max_open
        self.draining = False
        self.failure: BaseException | None = None
        self._engine = engine
        self._jobs: set[Job] = set()
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._places: dict[int, tuple[Job, int]] = {}

    @property
    def num_open(self) -> int:
        """Requests that run or wait."""
        return sum(len(job.requests) for job in self._jobs)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Runs the engine inside the block; who starts it sees `failure` after it."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "engine") as pool:
            ended = loop.run_in_executor(pool, self._work, loop)
            ended.add_done_callback(self._end)
            try:
                yield
            finally:
                self._commands.put(None)
                await asyncio.wait([ended])

    @contextlib.asynccontextmanager
    async def job(self, requests: Sequence[Request]) -> AsyncGenerator[Job]:
        """Requests that run inside the block; what is not done at its end is cancelled.

        Raises:
            ApiError: The server drains or has failed, too many requests wait, or the engine
                refuses one of these.
        """
        self.refuse(len(requests))
        job = Job(requests)
        self._jobs.add(job)
        self._commands.put(functools.partial(self._add, job, asyncio.get_running_loop()))
        try:
            await job.accepted
            yield job
        finally:
            self._jobs.discard(job)
            self._commands.put(functools.partial(self._drop, job))

    def refuse(self, count: int) -> None:
        """Raises ApiError where `count` more requests cannot be taken."""
        if self.failure is not None:
            raise _stopped()
        if self.draining:
            raise ApiError(503, "the server is shutting down", retry_after=1)
        if self.num_open + count > self.max_open:
            message = f"{self.num_open} requests run and wait, of {self.max_open} at most"
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after=1)

    def _end(self, ended: asyncio.Future[None]) -> None:
        self.failure = ended.exception()
        for job in self._jobs:
            job.abandon()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            while not self._places or not self._commands.empty():
                command = self._commands.get()
                if command is None:
                    return
                command()
                self.counts = Counts.of(self._engine)
            found = [
                (*self._places[event.id], event)
                for event in self._engine.step()
                if event.id in self._places
            ]
            for _, _, event in found:
                if event.finish_reason is not None:
                    del self._places[event.id]
            self.counts = Counts.of(self._engine)
            if found:
                loop.call_soon_threadsafe(_put, found)

    def _add(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        error = None
        try:
            for place, request in enumerate(job.requests):
                self._places[self._engine.add(request)] = job, place
        except ValueError as refused:
            error = refused
            self._drop(job)
        loop.call_soon_threadsafe(job.accept, error)

    def _drop(self, job: Job) -> None:
        for number in [number for number, (one, _) in self._places.items() if one is job]:
            del self._places[number]
            self._engine.cancel(number)


def _put(found: Sequence[tuple[Job, int, Event]]) -> None:
    for job, place, event in found:
        job.put(place, event)


def _stopped() -> ApiError:
    return ApiError(500, "the engine has stopped")

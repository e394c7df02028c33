"""Batches on the devices before the loop asks for them."""

import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from typing import Self

from maxtext.data.batch import Batch, BatchIterator, State, batch_digest


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A batch as the loop gets it.

    Attributes:
        batch: What `place` returned.
        state: State of the iterator after this batch: what a checkpoint of this step keeps.
        digest: `batch_digest` of the batch.
        wait_seconds: How long the loop stood still for it.
    """

    batch: Batch
    state: State
    digest: str
    wait_seconds: float


class DevicePrefetcher:
    """A thread that keeps `size` batches placed ahead of the loop; owns and closes the iterator.

    Raises `StopIteration` after the last batch, and what the thread raised, where it did, each
    time it is asked.
    """

    def __init__(
        self, iterator: BatchIterator, *, place: Callable[[Batch], Batch], size: int
    ) -> None:
        self._iterator = iterator
        self._place = place
        self._ready: queue.Queue[Loaded | BaseException] = queue.Queue(size)
        self._stop = threading.Event()
        self._end: BaseException | None = None
        self._thread = threading.Thread(target=self._load, name="data-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Loaded:
        assert not self._stop.is_set(), "closed"
        if self._end is not None:
            raise self._end
        start = time.perf_counter()
        loaded = self._ready.get()
        if isinstance(loaded, BaseException):
            self._end = loaded
            raise loaded
        return dataclasses.replace(loaded, wait_seconds=time.perf_counter() - start)

    def ready(self) -> bool:
        """Whether the next batch, or the end, is there already."""
        return not self._ready.empty()

    def close(self) -> None:
        """Ends the thread, after the batch it is making, and closes the iterator."""
        self._stop.set()
        while self._thread.is_alive():
            # The thread may be waiting for room.
            self._drain()
            self._thread.join(timeout=0.02)
        self._drain()
        self._iterator.close()

    def _drain(self) -> None:
        while not self._ready.empty():
            self._ready.get_nowait()

    def _load(self) -> None:
        try:
            while not self._stop.is_set():
                batch = next(self._iterator)
                digest, state = batch_digest(batch), self._iterator.get_state()
                self._ready.put(Loaded(self._place(batch), state, digest, wait_seconds=0.0))
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            self._ready.put(error)

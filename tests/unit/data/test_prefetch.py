import threading

import numpy as np
import pytest

from maxtext.data.batch import batch_digest, host_batch
from maxtext.data.prefetch import DevicePrefetcher


def numbered(step: int):
    return host_batch(np.full((4, 2, 3), step, np.int32))


class Steps:
    """Batches 0, 1, ... and a failure or the end after `length`."""

    def __init__(self, length: int, failure: type[Exception] = StopIteration) -> None:
        self.step = 0
        self.closed = False
        self._length, self._failure = length, failure

    def __iter__(self):
        return self

    def __next__(self):
        if self.step == self._length:
            raise self._failure("the end")
        self.step += 1
        return numbered(self.step)

    def get_state(self):
        return {"step": self.step}

    def close(self):
        self.closed = True


@pytest.fixture
def open_prefetcher():
    opened = []

    def open_one(iterator, *, place=lambda batch: batch, size=2):
        opened.append(DevicePrefetcher(iterator, place=place, size=size))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def test_each_batch_comes_placed_with_the_state_after_it_and_its_digest(open_prefetcher):
    placed = []

    def place(batch):
        placed.append(batch)
        return numbered(-1)

    loaded = list(open_prefetcher(Steps(5), place=place))
    assert [one.state for one in loaded] == [{"step": step} for step in range(1, 6)]
    assert [one.digest for one in loaded] == [batch_digest(numbered(step)) for step in range(1, 6)]
    assert all(int(one.batch.inputs[0, 0]) == -1 for one in loaded)
    assert [int(batch.inputs[0, 0]) for batch in placed] == [1, 2, 3, 4, 5]
    assert all(one.wait_seconds >= 0 for one in loaded)


def test_a_digest_changes_with_every_array():
    digests = {batch_digest(numbered(0))}
    for plane in range(4):
        arrays = np.zeros((4, 2, 3), np.int32)
        arrays[plane, 1, 2] = 1
        digests.add(batch_digest(host_batch(arrays)))
    assert len(digests) == 5
    assert all(len(one) == 16 for one in digests)


def test_the_thread_runs_ahead_by_the_size_and_no_more(open_prefetcher):
    reached = threading.Event()
    count = 0

    def place(batch):
        nonlocal count
        count += 1
        if count == 3:
            reached.set()
        return batch

    prefetcher = open_prefetcher(Steps(100), place=place, size=2)
    assert reached.wait(10), "two wait in the queue, one for room"
    next(prefetcher)
    assert count <= 4


def test_a_failure_reaches_the_consumer_after_the_batches_before_it_and_stays(open_prefetcher):
    prefetcher = open_prefetcher(Steps(1, ValueError))
    next(prefetcher)
    for _ in range(2):
        with pytest.raises(ValueError, match="the end"):
            next(prefetcher)


def test_a_failure_to_place_reaches_the_consumer(open_prefetcher):
    def place(batch):
        raise RuntimeError("no room on the device")

    with pytest.raises(RuntimeError, match="no room"):
        next(open_prefetcher(Steps(1), place=place))


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("length", [3, 1000])
def test_closing_ends_the_thread_and_the_iterator_at_any_moment(open_prefetcher, length, taken):
    before = threading.active_count()
    steps = Steps(length)
    prefetcher = open_prefetcher(steps, size=1)
    for _ in range(taken):
        next(prefetcher)
    prefetcher.close()
    assert steps.closed
    assert threading.active_count() == before
    prefetcher.close()

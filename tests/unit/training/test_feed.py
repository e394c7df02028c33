"""What processes tell each other of a batch."""

import contextlib
from collections.abc import Generator

import numpy as np
import pytest

from maxtext.data.batch import Batch, State, empty_batch
from maxtext.data.prefetch import DevicePrefetcher
from maxtext.metrics.goodput import Goodput
from maxtext.training import feed
from maxtext.training.feed import Feed
from maxtext.training.interrupt import Interrupt

STATE = {"process": 1, "tokens": {"web": 5 * 2**31 + 7, "books": 2**31 - 1}}


class OneBatch:
    """Data that end after a batch."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.left = [empty_batch(1, 2)]

    def __next__(self) -> Batch:
        if not self.left:
            raise StopIteration
        return self.left.pop()

    def get_state(self) -> State:
        return self.state

    def close(self) -> None:
        pass


@contextlib.contextmanager
def feed_of(state: State, *, before: State) -> Generator[Feed]:
    batches = DevicePrefetcher(OneBatch(state), place=lambda batch: batch, size=1)
    yield Feed(batches, Interrupt(), data_state=before, before_wait=lambda: None, goodput=Goodput())
    batches.close()


def test_tokens_are_summed_over_shards_and_processes_of_one_shard_count_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three processes: two of them feed the same rows."""

    def gather(*values: int):
        other = [*values[:3], 0, *(0, 10), *(1, 1)]
        return lambda: np.asarray([values, other, other], np.int32)

    monkeypatch.setattr(feed, "gather_later", gather)
    zero = {"process": 1, "tokens": {"web": 0, "books": 0}}
    with feed_of(STATE, before=zero) as fed:
        assert fed.next(done=0) is not None
        assert fed.tokens == {"web": 5 * 2**31 + 17, "books": 2 * 2**31}
        assert fed.next(done=1) is None


def test_data_of_one_source_count_none() -> None:
    with feed_of({"step": 1}, before={"step": 0}) as fed:
        assert fed.next(done=0) is not None
        assert fed.tokens == {}

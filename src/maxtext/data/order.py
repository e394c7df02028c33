"""Which document comes when, in one process: order, epochs, weights, and who gets which.

Grain shuffles. Each process reads its own share of every source, document i of the source's order
in process i modulo their number, and mixes sources by itself: so the mixture of a batch does not
depend on how long the documents of other processes are.
"""

import hashlib
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import grain
import numpy as np

from maxtext.data.batch import Shard
from maxtext.data.mixing import Schedule

# Epochs without end: with as many documents still a number that Grain can take the length of.
ENDLESS = 1 << 31

# Of each process of an earlier run: the document that came next, and the pairs taken of it.
type Deal = Sequence[tuple[int, int]]


class Order:
    """Documents of one process by their index in its stream, each as source and number in it.

    Each document is dealt once an epoch of its source. With an end, the stream ends before the
    first document that a source does not have any more.

    Args:
        sizes: Documents of each source.
        weights: How often each source is read.
        shuffle_seed: None keeps the order of the files.
        num_epochs: None goes on without end.
        shard: The process.
        dealt: Deals of earlier runs with other numbers of processes, the first one first; only
            what they left is dealt.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[Fraction],
        *,
        shuffle_seed: int | None,
        num_epochs: int | None,
        shard: Shard,
        dealt: Sequence[Deal] = (),
    ) -> None:
        self._shard = shard
        self._schedule = Schedule(weights)
        self._documents = [
            _documents(size, shuffle_seed, number).repeat(num_epochs or ENDLESS)
            for number, size in enumerate(sizes)
        ]
        self._left: list[list[_Left]] = [[] for _ in sizes]
        lengths = [len(documents) for documents in self._documents]
        for deal in dealt:
            for source, left in enumerate(self._left):
                left.append(_Left(deal, self._schedule, source, lengths[source]))
                lengths[source] = left[-1].length
        own = [-((shard.process_index - length) // shard.process_count) for length in lengths]
        ends = [self._schedule.index(source, max(0, count)) for source, count in enumerate(own)]
        self._length = min(*ends, sys.maxsize >> 1)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, int]:
        source, number, _ = self._place(index)
        return source, int(self._documents[source][number])

    def source(self, index: int) -> int:
        """The source of a document."""
        return self._schedule.draw(index)[0]

    def taken(self, index: int) -> int:
        """Pairs of a document that an earlier run took."""
        return self._place(index)[2]

    def _place(self, index: int) -> tuple[int, int, int]:
        source, number = self._schedule.draw(index)
        number = number * self._shard.process_count + self._shard.process_index
        taken = 0
        for left in reversed(self._left[source]):
            number = left[number]
            taken = taken or left.taken.get(number, 0)
        return source, number, taken


class _Left:
    """What the processes of one deal left of a source, as numbers of what was dealt.

    Attributes:
        length: How many they are.
        taken: Of those that were begun, the pairs taken.
    """

    def __init__(self, deal: Deal, schedule: Schedule, source: int, length: int) -> None:
        processes = len(deal)
        done = np.array([schedule.counts(document)[source] for document, _ in deal])
        # Up to the slowest process all are done, and none after the fastest.
        some = np.arange(done.min() * processes, min(done.max() * processes, length))
        self._ragged = some[some // processes >= done[some % processes]]
        self._rest = int(done.max()) * processes
        self.length = length - int(done.sum())
        self.taken: dict[int, int] = {}
        for process, (document, offset) in enumerate(deal):
            its, number = schedule.draw(document)
            if offset and its == source:
                self.taken[number * processes + process] = offset

    def __getitem__(self, index: int) -> int:
        if index < self._ragged.size:
            return int(self._ragged[index])
        return self._rest + index - self._ragged.size


def _documents(size: int, shuffle_seed: int | None, source: int) -> Any:
    # Numbers, not texts: Grain's bookkeeping of each read costs more than a short document.
    numbers = grain.MapDataset.range(size)
    if shuffle_seed is None:
        return numbers
    # Grain adds the epoch to the seed: hashed, no two seeds share an epoch's order, nor two
    # sources of one size.
    text = f"{shuffle_seed}/{source}" if source else str(shuffle_seed)
    digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
    return numbers.shuffle(seed=int.from_bytes(digest, "big"))

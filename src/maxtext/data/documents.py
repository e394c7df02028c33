"""The token documents of one process, in order, from any position on: the part that Grain runs.

Workers take groups of documents in turn and Grain puts the groups back in order, so the stream is
the same for any number of workers, and a position in it is one number.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from fractions import Fraction
from multiprocessing import resource_tracker
from typing import Any, cast

import grain
import numpy as np
from absl import flags

from maxtext.data.batch import Shard, State
from maxtext.data.chat import Chat, encode_chat
from maxtext.data.order import Deal, Order
from maxtext.data.packing import TokenDocument
from maxtext.data.records import Document, Source
from maxtext.data.tokenizer import Tokenizer

GROUP_BYTES = 1 << 18
GROUP_DOCUMENTS = 256


@dataclasses.dataclass(frozen=True)
class Tokenize:
    """Documents to one array of tokens and the length of each.

    Attributes:
        bos_id: Put before each document; None puts nothing.
        eos_id: Put after each document; None puts nothing. Neither is put where a chat template
            has put its own.
    """

    tokenizer: Tokenizer
    bos_id: int | None
    eos_id: int | None

    def __call__(self, documents: Sequence[Document]) -> dict[str, np.ndarray]:
        """The tokens of a group; of a token that does not count, ~id."""
        before = np.array([] if self.bos_id is None else [self.bos_id], np.int32)
        after = np.array([] if self.eos_id is None else [self.eos_id], np.int32)
        parts: list[np.ndarray] = []
        lengths: list[int] = []
        for document, ids in zip(documents, self._encoded(documents), strict=True):
            templated = isinstance(document, Chat) and document.templated
            one = [ids] if templated else [before, ids, after]
            parts += one
            lengths.append(sum(part.size for part in one))
        return {
            "tokens": np.concatenate(parts, dtype=np.int32),
            "lengths": np.array(lengths, np.int64),
        }

    def _encoded(self, documents: Sequence[Document]) -> list[np.ndarray]:
        if all(isinstance(one, str) for one in documents):
            return self.tokenizer.encode_many(cast(Sequence[str], documents))
        return [
            encode_chat(one, self.tokenizer) if isinstance(one, Chat) else self._encoded([one])[0]
            for one in documents
        ]


@dataclasses.dataclass(frozen=True)
class Reading:
    """What is read, in which order, and by how many workers.

    Attributes:
        sources: What is read.
        names: Of the sources.
        weights: How often each source is read.
        shuffle_seed: None reads in the order of the files.
        num_epochs: Of each source; None reads without end.
        num_workers: 0 reads in the thread that asks.
        worker_buffer: Groups of documents that each worker keeps ready.
    """

    sources: Sequence[Source]
    tokenize: Tokenize
    names: tuple[str, ...]
    weights: tuple[Fraction, ...]
    shard: Shard
    shuffle_seed: int | None
    num_epochs: int | None
    num_workers: int
    worker_buffer: int

    def order(self, dealt: Sequence[Deal] = ()) -> Order:
        """The documents of this process; `dealt` as `Order`."""
        return Order(
            [len(source) for source in self.sources],
            self.weights,
            shuffle_seed=self.shuffle_seed,
            num_epochs=self.num_epochs,
            shard=self.shard,
            dealt=dealt,
        )

    def read(self, places: Sequence[tuple[int, int]]) -> list[Document]:
        """Documents by their source and number in it."""
        return [self.sources[source][number] for source, number in places]

    def place(self) -> State:
        """What a state holds besides the number of a document: nothing."""
        return {}

    def go_to(self, state: State | None) -> None:
        """Does nothing: any document can be read next."""

    def documents(self, *, start: int, dealt: Sequence[Deal] = ()) -> Generator[TokenDocument]:
        """As `token_documents`."""
        return token_documents(self, start=start, dealt=dealt)


def token_documents(
    reading: Reading, *, start: int, dealt: Sequence[Deal] = ()
) -> Generator[TokenDocument]:
    """Token documents of a process from document `start` on; closing it ends the workers.

    Raises:
        ValueError: A record cannot be read, or no document makes a pair.
    """
    order = reading.order(dealt)
    if start >= len(order):
        return
    # Groups of about GROUP_BYTES, of one epoch at most. The stream does not depend on them.
    count = sum(len(source) for source in reading.sources)
    num_bytes = sum(source.num_bytes for source in reading.sources)
    group = max(1, min(GROUP_DOCUMENTS, count, GROUP_BYTES * count // num_bytes))
    groups = (
        grain.MapDataset.source(order)[start:]
        .batch(group, batch_fn=list)
        .map(reading.read)
        .map(reading.tokenize)
        .to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
        .mp_prefetch(
            grain.MultiprocessingOptions(
                num_workers=reading.num_workers, per_worker_buffer_size=reading.worker_buffer
            ),
            worker_init_fn=_end_with_parent,
        )
    )
    if not flags.FLAGS.is_parsed():
        # Grain reads its settings from absl's flags, and fails where nobody parsed them.
        flags.FLAGS.mark_as_parsed()
    iterator = iter(groups)
    try:
        # Closed before the workers, whose memory it holds.
        with contextlib.closing(_split(iterator, limit=count)) as documents:
            for index, tokens in enumerate(documents, start):
                yield TokenDocument(tokens, order.source(index), order.taken(index) if dealt else 0)
    finally:
        if reading.num_workers:
            # Grain closes only the workers it has taken an element from; asking for the state
            # takes hold of the others too.
            iterator.get_state()
        iterator.close()


def _split(groups: Iterator[dict[str, Any]], *, limit: int) -> Generator[np.ndarray]:
    barren = 0
    with _interrupts_held():
        one = next(groups, None)
    while one is not None:
        tokens = np.array(one["tokens"])
        for document in np.split(tokens, np.cumsum(one["lengths"])[:-1]):
            barren = 0 if (document[1:] >= 0).any() else barren + 1
            if barren > limit:
                raise ValueError(
                    f"none of the {limit} documents has a token to predict: one that counts, after "
                    "another one"
                )
            yield document
        one = next(groups, None)


@contextlib.contextmanager
def _interrupts_held() -> Generator[None]:
    """Holds Ctrl-C back while workers start, who inherit that: it is for the parent to end them."""
    # Starting the tracker lets signals through again in the thread that does it.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent(worker: int, num_workers: int) -> None:
    """Makes a worker end when its parent was killed and could not tell it to."""
    del worker, num_workers
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()

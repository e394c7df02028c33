"""The token documents of one process, in order, from any position on: the part that Grain runs.

Grain shuffles, deals documents to processes and runs workers. Workers take groups of documents in
turn and Grain puts the groups back in order, so the stream is the same for any number of workers,
and a position in it is one number.
"""

import contextlib
import dataclasses
import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from multiprocessing import resource_tracker
from typing import Any

import grain
import numpy as np
from absl import flags

from maxtext.data.batch import Shard
from maxtext.data.sources import Source
from maxtext.data.tokenizer import Tokenizer

GROUP_BYTES = 1 << 18
GROUP_DOCUMENTS = 256
# Epochs without end: with as many documents still a number that Grain can take the length of.
ENDLESS = 1 << 31


@dataclasses.dataclass(frozen=True)
class Tokenize:
    """Documents of a source, by their indices, to one array of tokens and the length of each.

    Attributes:
        bos_id: Put before each document; None puts nothing.
        eos_id: Put after each document; None puts nothing.
    """

    source: Source
    tokenizer: Tokenizer
    bos_id: int | None
    eos_id: int | None

    def __call__(self, indices: Sequence[int]) -> dict[str, np.ndarray]:
        """Reads and tokenizes one group."""
        encoded = self.tokenizer.encode_many([self.source[index] for index in indices])
        before = np.array([] if self.bos_id is None else [self.bos_id], np.int32)
        after = np.array([] if self.eos_id is None else [self.eos_id], np.int32)
        parts = [part for ids in encoded for part in (before, ids, after)]
        lengths = [before.size + ids.size + after.size for ids in encoded]
        return {
            "tokens": np.concatenate(parts, dtype=np.int32),
            "lengths": np.array(lengths, np.int64),
        }


@dataclasses.dataclass(frozen=True)
class Reading:
    """What is read, in which order, and by how many workers.

    Attributes:
        shuffle_seed: None reads in the order of the files.
        num_epochs: None reads without end.
        num_workers: 0 reads in the thread that asks.
        worker_buffer: Groups of documents that each worker keeps ready.
    """

    tokenize: Tokenize
    shard: Shard
    shuffle_seed: int | None
    num_epochs: int | None
    num_workers: int
    worker_buffer: int

    def indices(self, start: int) -> grain.MapDataset:
        """Documents of this process: all epochs in one line, dealt out to the processes in turn.

        Each document is dealt once an epoch. At the end of the last epoch a process that comes
        late in turn may have one document less.

        Args:
            start: Documents of this process to leave out.
        """
        # Numbers, not texts: Grain's bookkeeping of each read costs more than a short document.
        indices = grain.MapDataset.range(len(self.tokenize.source))
        if self.shuffle_seed is not None:
            # Grain adds the epoch to the seed: hashed, no two seeds share an epoch's order.
            digest = hashlib.blake2b(str(self.shuffle_seed).encode(), digest_size=4).digest()
            indices = indices.shuffle(seed=int.from_bytes(digest, "big"))
        processes = self.shard.process_count
        first = self.shard.process_index + start * processes
        return indices.repeat(self.num_epochs or ENDLESS)[first::processes]


def token_documents(reading: Reading, *, start: int) -> Generator[np.ndarray]:
    """Token documents of a process from document `start` on; closing it ends the workers.

    Raises:
        ValueError: A record cannot be read, or no document makes a pair.
    """
    indices = reading.indices(start)
    if not len(indices):
        return
    # Groups of about GROUP_BYTES, of one epoch at most. The stream does not depend on them.
    source = reading.tokenize.source
    count = len(source)
    group = max(1, min(GROUP_DOCUMENTS, count, GROUP_BYTES * count // source.num_bytes))
    groups = (
        indices.batch(group, batch_fn=list)
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
        yield from _split(iterator, limit=count)
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
            barren = 0 if document.size > 1 else barren + 1
            if barren > limit:
                raise ValueError(
                    f"none of the {limit} documents has two tokens, so there is nothing to predict"
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

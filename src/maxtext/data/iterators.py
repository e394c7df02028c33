"""The kinds of data, documents and random numbers, behind one iterator."""

import dataclasses
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from maxtext.config.schema_training import DataConfig
from maxtext.data.batch import Batch, BatchIterator, Shard, State, check_state, host_batch
from maxtext.data.packing import Cursor, Kind, Rows, TokenDocument, fill

if TYPE_CHECKING:
    from maxtext.data.documents import Reading
    from maxtext.data.opening import Purpose
    from maxtext.data.order import Deal
    from maxtext.data.stream import StreamReading


def make_train_iterator(
    config: DataConfig, *, rows: int, shard: Shard, vocab_size: int
) -> BatchIterator:
    """Batches of `rows` rows for this process, over `num_epoch` epochs.

    Raises:
        ValueError: Files, columns or the tokenizer do not fit; the message names the key.
    """
    return _make(config, "train", rows=rows, shard=shard, vocab_size=vocab_size)


def make_eval_iterator(
    config: DataConfig, *, rows: int, shard: Shard, vocab_size: int
) -> BatchIterator:
    """Batches of `rows` rows for this process: each document once, in the order of the files.

    Synthetic data has no end here either. Raises as `make_train_iterator`.
    """
    return _make(config, "eval", rows=rows, shard=shard, vocab_size=vocab_size)


def _make(
    config: DataConfig, purpose: "Purpose", *, rows: int, shard: Shard, vocab_size: int
) -> BatchIterator:
    assert rows > 0, rows
    if config.dataset_type == "synthetic":
        return SyntheticIterator(
            config, rows=rows, shard=shard, vocab_size=vocab_size, stream=purpose
        )
    return _packed(config, purpose, rows=rows, shard=shard, vocab_size=vocab_size)


def _packed(
    config: DataConfig, purpose: "Purpose", *, rows: int, shard: Shard, vocab_size: int
) -> BatchIterator:
    # Grain takes a second to import, which synthetic data need not pay.
    from maxtext.data.documents import Reading, Tokenize
    from maxtext.data.opening import open_sources
    from maxtext.data.stream import StreamReading
    from maxtext.data.tokenizer import load_tokenizer

    train = purpose == "train"
    tokenizer = load_tokenizer(config, vocab_size=vocab_size)
    opened = open_sources(config, purpose)
    seed = config.data_shuffle_seed if train and config.enable_data_shuffling else None
    num_epochs = 1 if not train else None if config.num_epoch == -1 else config.num_epoch
    tokenize = Tokenize(
        tokenizer,
        bos_id=tokenizer.bos_id if config.add_bos else None,
        eos_id=tokenizer.eos_id if config.add_eos else None,
    )
    if opened.stream is not None:
        reading = StreamReading(
            opened.stream,
            tokenize,
            shard,
            shuffle_seed=seed,
            num_epochs=num_epochs,
            window=config.grain_shuffle_buffer_size,
        )
    else:
        reading = Reading(
            opened.sources,
            tokenize,
            names=opened.names,
            weights=opened.weights,
            shard=shard,
            shuffle_seed=seed,
            num_epochs=num_epochs,
            num_workers=config.grain_worker_count if train else config.grain_worker_count_eval,
            worker_buffer=config.grain_per_worker_buffer_size,
        )
    packing = Packing(
        kind=config.grain_packing_type,
        rows=rows,
        length=config.max_target_length,
        max_segments=config.max_segments_per_seq if config.packing else 1,
    )
    settings = {
        **opened.settings,
        "tokenizer": tokenizer.name,
        "add_bos": config.add_bos,
        "add_eos": config.add_eos,
        "packing": config.packing,
        "grain_packing_type": packing.kind,
        "max_segments_per_seq": packing.max_segments,
        "max_target_length": packing.length,
        "enable_data_shuffling": seed is not None,
        "data_shuffle_seed": seed,
    }
    return PackedIterator(reading, packing, settings=settings)


@dataclasses.dataclass(frozen=True)
class Packing:
    """How documents fill a batch, its shape, and how many a row may hold (-1: any number)."""

    kind: Kind
    rows: int
    length: int
    max_segments: int


class PackedIterator:
    """Documents, packed.

    A state is the document and the pair of it that comes next: half-filled rows never need to be
    saved, since every batch starts with fresh rows. Neither the number of rows nor of workers nor
    of epochs is part of it, so these may change when a run goes on. Where there are several
    sources it holds the pairs of each that this process has fed, too.
    """

    def __init__(
        self, reading: "Reading | StreamReading", packing: Packing, *, settings: dict[str, Any]
    ) -> None:
        self._reading = reading
        self._packing = packing
        self._settings = settings
        self._documents: Generator[TokenDocument] | None = None
        self._cursor: Cursor | None = None
        self._dealt: Sequence[Deal] = ()
        self.reset()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        cursor, packing = self._cursor or self._open(), self._packing
        rows = Rows(packing.rows, packing.length, max_segments=packing.max_segments)
        try:
            batch = fill(cursor, rows, kind=packing.kind)
        except BaseException:
            # Another attempt starts at the same place, and does not take the failure for the end.
            self.close()
            self._reading.go_to(self._place)
            raise
        self._position, self._place = (cursor.document, cursor.offset), self._reading.place()
        if batch is None:
            raise StopIteration
        for source, pairs in cursor.pairs.items():
            if len(self._tokens) > 1:
                self._tokens[self._reading.names[source]] += pairs
        cursor.pairs.clear()
        return batch

    def _open(self) -> Cursor:
        document, offset = self._position
        self._documents = self._reading.documents(start=document, dealt=self._dealt)
        self._cursor = Cursor(self._documents, document=document, offset=offset)
        return self._cursor

    def get_state(self) -> State:
        """As `BatchIterator`."""
        document, offset = self._position
        return {
            **self._header(),
            "processes": self._reading.shard.process_count,
            "process": self._reading.shard.process_index,
            "dealt": list(self._dealt),
            "document": document,
            "offset": offset,
            "tokens": dict(self._tokens),
            **self._place,
        }

    def set_state(self, state: State) -> None:
        """As `BatchIterator`; the state is this process's, or `own_state` of all."""
        check_state(state, self._header())
        shard = self._reading.shard
        assert (state["processes"], state["process"]) == (shard.process_count, shard.process_index)
        self.close()
        self._reading.go_to(state)
        self._dealt = state["dealt"]
        self._position = (state["document"], state["offset"])
        self._place = self._reading.place()
        self._tokens = dict(state["tokens"])

    def reset(self) -> None:
        """As `BatchIterator`."""
        self.close()
        self._reading.go_to(None)
        self._dealt = ()
        self._position, self._place = (0, 0), self._reading.place()
        names = self._reading.names
        self._tokens = dict.fromkeys(names if len(names) > 1 else (), 0)

    def close(self) -> None:
        """As `BatchIterator`."""
        if self._documents is not None:
            self._documents.close()
        self._documents = self._cursor = None

    def _header(self) -> State:
        return {"format": "maxtext packed documents, 2", "settings": self._settings}


class SyntheticIterator:
    """Random tokens without end: row r of the global batch of step s depends on seed, r, s only."""

    def __init__(
        self, config: DataConfig, *, rows: int, shard: Shard, vocab_size: int, stream: "Purpose"
    ) -> None:
        self._shape = (rows, config.max_target_length)
        self._first_row = rows * shard.process_index
        self._settings = {
            "data_shuffle_seed": config.data_shuffle_seed,
            "max_target_length": config.max_target_length,
            "vocab_size": vocab_size,
            "stream": stream,
        }
        # SeedSequence spreads a seed of any size over the key.
        entropy = [config.data_shuffle_seed, int(stream == "eval")]
        self._key = np.random.SeedSequence(entropy).generate_state(2, np.uint64)
        self._vocab_size = vocab_size
        self._step = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        rows, length = self._shape
        tokens = np.stack([self._row(row, length + 1) for row in range(rows)])
        arrays = np.empty((4, rows, length), np.int32)
        arrays[0], arrays[1] = tokens[:, :-1], tokens[:, 1:]
        arrays[2], arrays[3] = np.arange(length), 1
        self._step += 1
        return host_batch(arrays)

    def _row(self, row: int, size: int) -> np.ndarray:
        # The raw words of a counter-based generator stay the same in every version of numpy.
        counter = [0, 0, self._step, self._first_row + row]
        words = np.random.Philox(key=self._key, counter=counter).random_raw(size)
        return (words % self._vocab_size).astype(np.int32)

    def get_state(self) -> State:
        """As `BatchIterator`."""
        return {**self._header(), "step": self._step}

    def set_state(self, state: State) -> None:
        """As `BatchIterator`."""
        check_state(state, self._header())
        self._step = state["step"]

    def reset(self) -> None:
        """As `BatchIterator`."""
        self._step = 0

    def close(self) -> None:
        """Does nothing: nothing is held."""

    def _header(self) -> State:
        return {"format": "maxtext synthetic, 1", "settings": self._settings}

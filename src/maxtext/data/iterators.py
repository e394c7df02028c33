"""The two kinds of data, files and random numbers, behind one iterator."""

import dataclasses
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from maxtext.config.schema import DataConfig
from maxtext.data.batch import Batch, BatchIterator, Shard, State, check_state, host_batch
from maxtext.data.packing import Cursor, concat_rows

if TYPE_CHECKING:
    from maxtext.data.documents import Reading

type Purpose = Literal["train", "eval"]


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
    config: DataConfig, purpose: Purpose, *, rows: int, shard: Shard, vocab_size: int
) -> BatchIterator:
    assert rows > 0, rows
    if config.dataset_type == "synthetic":
        return SyntheticIterator(
            config, rows=rows, shard=shard, vocab_size=vocab_size, stream=purpose
        )
    return _packed(config, purpose, rows=rows, shard=shard, vocab_size=vocab_size)


def _packed(
    config: DataConfig, purpose: Purpose, *, rows: int, shard: Shard, vocab_size: int
) -> BatchIterator:
    # Grain takes a second to import, which synthetic data need not pay.
    from maxtext.data.documents import Reading, Tokenize
    from maxtext.data.records import Columns
    from maxtext.data.sources import find_files, open_source
    from maxtext.data.tokenizer import load_tokenizer

    train = purpose == "train"
    names = config.train_data_columns if train else config.eval_data_columns
    columns = Columns(names, f"{purpose}_data_columns")
    files_key = f"grain_{purpose}_files"
    paths = find_files(
        config.grain_train_files if train else config.grain_eval_files, key=files_key
    )
    tokenizer = load_tokenizer(config, vocab_size=vocab_size)
    source = open_source(paths, file_type=config.grain_file_type, columns=columns)
    shuffled = train and config.enable_data_shuffling
    reading = Reading(
        tokenize=Tokenize(
            source,
            tokenizer,
            bos_id=tokenizer.bos_id if config.add_bos else None,
            eos_id=tokenizer.eos_id if config.add_eos else None,
        ),
        shard=shard,
        shuffle_seed=config.data_shuffle_seed if shuffled else None,
        num_epochs=1 if not train else None if config.num_epoch == -1 else config.num_epoch,
        num_workers=config.grain_worker_count if train else config.grain_worker_count_eval,
        worker_buffer=config.grain_per_worker_buffer_size,
    )
    packing = Packing(
        rows=rows,
        length=config.max_target_length,
        max_segments=config.max_segments_per_seq if config.packing else 1,
    )
    settings = {
        files_key: f"{source} (digest {source.digest})",
        columns.key: list(names),
        "tokenizer": tokenizer.name,
        "add_bos": config.add_bos,
        "add_eos": config.add_eos,
        "packing": config.packing,
        "max_segments_per_seq": packing.max_segments,
        "max_target_length": packing.length,
        "enable_data_shuffling": shuffled,
        "data_shuffle_seed": reading.shuffle_seed,
        "processes": shard.process_count,
        "process": shard.process_index,
    }
    return PackedIterator(reading, packing, settings=settings)


@dataclasses.dataclass(frozen=True)
class Packing:
    """The shape of a batch, and how many documents a row may hold (-1: any number)."""

    rows: int
    length: int
    max_segments: int


class PackedIterator:
    """Documents of files, packed.

    A state is the document and the pair of it that comes next: half-filled rows never need to be
    saved, since every batch starts with fresh rows. Neither the number of rows nor of workers nor
    of epochs is part of it, so these may change when a run goes on.
    """

    def __init__(self, reading: "Reading", packing: Packing, *, settings: dict[str, Any]) -> None:
        self._reading = reading
        self._packing = packing
        self._settings = settings
        self._documents: Generator[np.ndarray] | None = None
        self._position = (0, 0)
        self._cursor: Cursor | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        cursor, packing = self._cursor or self._open(), self._packing
        try:
            batch = concat_rows(
                cursor,
                rows=packing.rows,
                length=packing.length,
                max_segments=packing.max_segments,
            )
        except BaseException:
            # Another attempt starts at the same place, and does not take the failure for the end.
            self.close()
            raise
        self._position = (cursor.document, cursor.offset)
        if batch is None:
            raise StopIteration
        return batch

    def _open(self) -> Cursor:
        from maxtext.data.documents import token_documents

        document, offset = self._position
        self._documents = token_documents(self._reading, start=document)
        self._cursor = Cursor(self._documents, document=document, offset=offset)
        return self._cursor

    def get_state(self) -> State:
        """As `BatchIterator`."""
        document, offset = self._position
        return {**self._header(), "document": document, "offset": offset}

    def set_state(self, state: State) -> None:
        """As `BatchIterator`."""
        check_state(state, self._header())
        self.close()
        self._position = (state["document"], state["offset"])

    def reset(self) -> None:
        """As `BatchIterator`."""
        self.close()
        self._position = (0, 0)

    def close(self) -> None:
        """As `BatchIterator`."""
        if self._documents is not None:
            self._documents.close()
        self._documents = self._cursor = None

    def _header(self) -> State:
        return {"format": "maxtext packed documents, 1", "settings": self._settings}


class SyntheticIterator:
    """Random tokens without end: row r of the global batch of step s depends on seed, r, s only."""

    def __init__(
        self, config: DataConfig, *, rows: int, shard: Shard, vocab_size: int, stream: Purpose
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

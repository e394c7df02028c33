"""A data set that is read from front to back, shuffled a window of documents at a time."""

import dataclasses
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from maxtext.data.batch import Shard, State
from maxtext.data.documents import Tokenize
from maxtext.data.order import Deal
from maxtext.data.packing import TokenDocument
from maxtext.data.records import Document, Form


@dataclasses.dataclass(frozen=True)
class Stream:
    """Rows of a data set, and how each becomes a document.

    Attributes:
        rows: The share of one process in the rows, as an `IterableDataset` at its start.
        name: What messages call it.
    """

    rows: Callable[[Shard], Any]
    form: Form
    name: str


@dataclasses.dataclass(frozen=True)
class _Window:
    """Where a window begins: its first document, its epoch, its number there, the rows' state."""

    document: int = 0
    epoch: int = 0
    number: int = 0
    rows: State | None = None


def reason(error: Exception) -> str:
    """Why rows cannot be read, in one line."""
    cause = error.__cause__ or error
    if isinstance(cause, StopIteration):
        return "it has no rows"
    return " ".join(str(cause).split()) or type(cause).__name__


class StreamReading:
    """The documents of one process, as `Reading` for sources that are read at random.

    A place is a window and the rows' own state at its start: going on reads the window again.

    Args:
        shuffle_seed: None reads in the order of the rows.
        num_epochs: None reads without end.
        window: Documents that are shuffled at a time.
    """

    def __init__(
        self,
        stream: Stream,
        tokenize: Tokenize,
        shard: Shard,
        *,
        shuffle_seed: int | None,
        num_epochs: int | None,
        window: int,
    ) -> None:
        self.names = ("",)
        self.shard = shard
        self._stream = stream
        self._tokenize = tokenize
        self._shuffle_seed = shuffle_seed
        self._num_epochs = num_epochs
        self._size = window
        self._window = _Window()

    def place(self) -> State:
        """The window that the next document is in, or follows."""
        return {"window": dataclasses.asdict(self._window)}

    def go_to(self, state: State | None) -> None:
        """Goes to the window of a state, or to the first one; nothing may be open."""
        self._window = _Window(**state["window"]) if state else _Window()

    def documents(self, *, start: int, dealt: Sequence[Deal] = ()) -> Generator[TokenDocument]:
        """Token documents from document `start` on, which lies in the window of the place.

        Raises:
            ValueError: A row cannot be read, or an epoch has no pair that counts.
        """
        assert not dealt
        while self._num_epochs is None or self._window.epoch < self._num_epochs:
            whole, counted, documents = self._window.rows is None, 0, 0
            for window in self._windows():
                skip = max(0, start - self._window.document)
                documents += len(window)
                for tokens in self._tokens(window[skip:]):
                    counted += int((tokens[1:] >= 0).any())
                    yield TokenDocument(tokens)
            if whole and not documents:
                return
            if whole and not counted:
                raise ValueError(f"{self._stream.name}: no document has a token to predict")

    def _windows(self) -> Iterator[list[Document]]:
        """The windows of this epoch from the place on; leaves the place at the next epoch."""
        rows = self._stream.rows(self.shard)
        state = self._window.rows
        if state is not None:
            rows.load_state_dict(state)
        records = iter(rows)
        try:
            while window := self._read(records):
                yield self._shuffled(window)
                self._window = _Window(
                    document=self._window.document + len(window),
                    epoch=self._window.epoch,
                    number=self._window.number + 1,
                    rows=rows.state_dict(),
                )
        finally:
            records.close()
        self._window = _Window(document=self._window.document, epoch=self._window.epoch + 1)

    def _read(self, records: Iterator[Any]) -> list[Document]:
        window: list[Document] = []
        first = self._window.document + 1

        def where() -> str:
            return f"{self._stream.name}:document {first + len(window)} of the stream"

        while len(window) < self._size:
            try:
                record = next(records, None)
            except Exception as error:  # files, arrow and the network each raise their own
                raise ValueError(f"{where()} cannot be read: {reason(error)}") from error
            if record is None:
                break
            window.append(self._stream.form.document(record, where))
        return window

    def _shuffled(self, window: list[Document]) -> list[Document]:
        if self._shuffle_seed is None:
            return window
        # The raw words of a counter-based generator stay the same in every version of numpy.
        counter = [0, 0, self._window.epoch, self._window.number]
        words = np.random.Philox(key=self._shuffle_seed, counter=counter).random_raw(len(window))
        return [window[index] for index in np.argsort(words, kind="stable")]

    def _tokens(self, window: list[Document]) -> Iterator[np.ndarray]:
        if not window:
            return
        group = self._tokenize(window)
        yield from np.split(group["tokens"], np.cumsum(group["lengths"])[:-1])

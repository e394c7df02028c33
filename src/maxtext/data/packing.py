"""Documents to rows of (input, target) pairs, from a position that can be saved.

Every batch starts with fresh rows, so that a position is all there is to save: no document waits
in a half-filled row.
"""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np

from maxtext.data.batch import UNCOUNTED, Batch, host_batch

type Kind = Literal["concat_then_split", "first_fit"]


@dataclasses.dataclass(frozen=True)
class TokenDocument:
    """A document as tokens.

    Attributes:
        tokens: Ids; ~id where the token is read and not counted as a target.
        source: Number of the source that it is from.
        taken: Pairs of it that are not wanted, at its start: they were had before.
    """

    tokens: np.ndarray
    source: int = 0
    taken: int = 0


class Cursor:
    """A position in a stream of token documents: a document, and the pairs of it already taken.

    A document of n tokens makes n - 1 pairs: documents of fewer than two are passed over.

    Attributes:
        document: Index of the current document in the stream.
        offset: Pairs of it that were taken.
        pairs: Pairs taken since the cursor was made, by the number of their source.
    """

    def __init__(self, documents: Iterator[TokenDocument], *, document: int, offset: int) -> None:
        self.document = document
        self.offset = offset
        self.pairs: dict[int, int] = {}
        self._documents = documents
        self._current: TokenDocument | None = None

    def left(self) -> int:
        """Pairs that are left of the current document; 0 at the end of the stream.

        Raises:
            ValueError: The position lies outside of the document.
        """
        while self._current is None:
            current = next(self._documents, None)
            if current is None:
                return 0
            self.offset = self.offset or current.taken
            if self.offset and self.offset + 1 >= current.tokens.size:
                raise ValueError(
                    f"the data iterator's state points to pair {self.offset} of document "
                    f"{self.document}, which has {current.tokens.size} tokens: the data has changed"
                )
            if current.tokens.size < 2:
                self._next_document()
            else:
                self._current = current
        return self._current.tokens.size - 1 - self.offset

    def take(self, pairs: int) -> np.ndarray:
        """The next pairs + 1 tokens of the current document, which has that many left."""
        assert 0 < pairs <= self.left(), (pairs, self.left())
        assert self._current is not None
        piece = self._current.tokens[self.offset : self.offset + pairs + 1]
        source = self._current.source
        self.pairs[source] = self.pairs.get(source, 0) + pairs
        self.offset += pairs
        if self.offset + 1 == self._current.tokens.size:
            self._next_document()
        return piece

    def _next_document(self) -> None:
        self._current = None
        self.document += 1
        self.offset = 0


class Rows:
    """Rows of a batch while they are filled.

    Args:
        max_segments: Documents in one row at most; -1 for no limit.
    """

    def __init__(self, rows: int, length: int, *, max_segments: int) -> None:
        self._arrays = np.zeros((4, rows, length), np.int32)
        self._count = np.arange(length, dtype=np.int32)
        self._segments = [0] * rows
        self._max_segments = max_segments
        self.room = [length] * rows

    def add(self, row: int, piece: np.ndarray) -> None:
        """Puts the pairs of a piece of a document into a row that has room for them."""
        pairs = piece.size - 1
        start = len(self._count) - self.room[row]
        self.room[row] -= pairs
        self._segments[row] += 1
        inputs, targets, positions, segments = self._arrays[:, row, start : start + pairs]
        inputs[:] = np.maximum(piece[:-1], ~piece[:-1])
        targets[:] = np.maximum(piece[1:], UNCOUNTED)
        positions[:] = self._count[:pairs]
        segments[:] = self._segments[row]
        if self._segments[row] == self._max_segments:
            self.room[row] = 0

    def batch(self) -> Batch | None:
        """The rows as they are; None where nothing was put into them."""
        return host_batch(self._arrays) if any(self._segments) else None


def fill(cursor: Cursor, rows: Rows, *, kind: Kind) -> Batch | None:
    """The next rows of the stream, the last ones empty where it ends; None after the end.

    `concat_then_split` fills one row after another; a document that does not fit goes on in the
    next one. `first_fit` keeps a document whole where a row can hold it, and puts it into the first
    row with room; the first that finds none begins the next batch.
    """
    if kind == "first_fit":
        _first_fit(cursor, rows)
    else:
        _concat_then_split(cursor, rows)
    return rows.batch()


def _concat_then_split(cursor: Cursor, rows: Rows) -> None:
    for row in range(len(rows.room)):
        while rows.room[row] and (left := cursor.left()):
            rows.add(row, cursor.take(min(left, rows.room[row])))


def _first_fit(cursor: Cursor, rows: Rows) -> None:
    length = max(rows.room)
    while left := cursor.left():
        pairs = min(left, length)
        row = next((row for row, room in enumerate(rows.room) if room >= pairs), None)
        if row is None:
            return
        rows.add(row, cursor.take(pairs))

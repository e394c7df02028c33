"""Documents to rows of (input, target) pairs, from a position that can be saved.

One algorithm, concat then split: a row takes documents until it is full, and the next row goes on
where it stopped. Another one (first fit) is another function beside `concat_rows`.
"""

from collections.abc import Iterator

import numpy as np

from maxtext.data.batch import Batch, host_batch


class Cursor:
    """A position in a stream of token documents: a document, and the pairs of it already taken.

    A document of n tokens makes n - 1 pairs: documents of fewer than two are passed over.

    Attributes:
        document: Index of the current document in the stream.
        offset: Pairs of it that were taken.
    """

    def __init__(self, documents: Iterator[np.ndarray], *, document: int, offset: int) -> None:
        self.document = document
        self.offset = offset
        self._documents = documents
        self._tokens: np.ndarray | None = None

    def take(self, limit: int) -> np.ndarray | None:
        """The next n + 1 tokens of one document, which make n <= limit pairs; None at the end.

        Raises:
            ValueError: The position lies outside of the document.
        """
        tokens = self._current()
        if tokens is None:
            return None
        piece = tokens[self.offset : self.offset + limit + 1]
        self.offset += piece.size - 1
        if self.offset + 1 == tokens.size:
            self._next_document()
        return piece

    def _current(self) -> np.ndarray | None:
        while self._tokens is None:
            tokens = next(self._documents, None)
            if tokens is None:
                return None
            if self.offset and self.offset + 1 >= tokens.size:
                raise ValueError(
                    f"the data iterator's state points to pair {self.offset} of document "
                    f"{self.document}, which has {tokens.size} tokens: the data has changed"
                )
            if tokens.size < 2:
                self._next_document()
            else:
                self._tokens = tokens
        return self._tokens

    def _next_document(self) -> None:
        self._tokens = None
        self.document += 1
        self.offset = 0


def concat_rows(cursor: Cursor, *, rows: int, length: int, max_segments: int) -> Batch | None:
    """The next rows of the stream, the last ones empty where it ends; None after the end.

    Args:
        max_segments: Documents in one row at most; -1 for no limit.
    """
    arrays = np.zeros((4, rows, length), np.int32)
    inputs, targets, positions, segments = arrays
    count = np.arange(length, dtype=np.int32)
    for row in range(rows):
        column = segment = 0
        while column < length and segment != max_segments:
            piece = cursor.take(length - column)
            if piece is None:
                return host_batch(arrays) if row or column else None
            pairs = slice(column, column + piece.size - 1)
            segment += 1
            inputs[row, pairs] = piece[:-1]
            targets[row, pairs] = piece[1:]
            positions[row, pairs] = count[: piece.size - 1]
            segments[row, pairs] = segment
            column = pairs.stop
    return host_batch(arrays)

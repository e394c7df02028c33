"""Weights alone, written and read a piece at a time: what is larger than memory passes through.

What is written is a step like any other, with nothing in it but `params/`: Orbax reads it too.
"""

import collections
import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorstore as ts

from maxtext.checkpoint.arrays import Place, array_spec, chunks, create_array
from maxtext.checkpoint.checksums import part_checksum
from maxtext.checkpoint.errors import CheckpointError, DamagedCheckpoint, brief
from maxtext.checkpoint.files import seal
from maxtext.checkpoint.folders import WEIGHTS
from maxtext.checkpoint.loading import find_source
from maxtext.checkpoint.reading import read_values

_MAX_CHUNK_BYTES = 64 * 2**20
_MAX_PENDING_BYTES = 256 * 2**20
# Nothing is read or written twice.
_CONTEXT = {
    "cache_pool": {"total_bytes_limit": 0},
    "cache_pool#ocdbt": {"total_bytes_limit": 100_000_000},
}


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Shape and type of an array in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def num_bytes(self) -> int:
        """Size of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclasses.dataclass
class _Written:
    leaf: Leaf
    chunk: tuple[int, ...]
    store: ts.TensorStore
    checksum: int = 0
    count: int = 0


class WeightsWriter:
    """Writes a step that holds weights only.

    Args:
        folder: The step's folder, which the caller gives its name once `finish` returned.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context = ts.Context(_CONTEXT)
        self._arrays: dict[str, _Written] = {}
        self._pending: collections.deque[tuple[ts.WriteFutures, int]] = collections.deque()

    def add(self, name: str, leaf: Leaf, *, stacked: bool) -> None:
        """Starts an array; pieces of it follow, of a stacked one layer by layer.

        Raises:
            CheckpointError: It cannot be written.
        """
        chunk = _chunk_shape(leaf, stacked=stacked)
        try:
            store = create_array(
                self._folder,
                WEIGHTS + name,
                shape=leaf.shape,
                dtype=leaf.dtype.name,
                chunk=chunk,
                context=self._context,
            )
        except ValueError as error:
            raise CheckpointError(f"{name} cannot be written: {brief(error)}") from error
        self._arrays[name] = _Written(leaf, chunk, store)

    def write(self, name: str, piece: np.ndarray, *, at: int) -> None:
        """Writes rows `at` and following of an array; on return the piece may be changed.

        Raises:
            CheckpointError: It cannot be written.
        """
        array = self._arrays[name]
        assert piece.dtype == array.leaf.dtype, f"{name}: {piece.dtype}"
        assert piece.shape[1:] == array.leaf.shape[1:], f"{name}: {piece.shape}"
        for chunk in chunks(piece.shape, array.chunk):
            # A copy: the caller's memory is its own again, and a strided part becomes a plain one.
            part = np.array(piece[chunk], order="C")
            place = _moved(chunk, at)
            array.checksum += part_checksum(part, place, array.leaf.shape)
            self._pending.append((array.store[place].write(part), part.nbytes))
            self._wait(_MAX_PENDING_BYTES)
        array.count += piece.size

    def finish(self, config: Mapping[str, Any]) -> None:
        """Waits, and writes what makes the arrays a step.

        Args:
            config: Of the model, flat.

        Raises:
            CheckpointError: Something cannot be written.
        """
        self._wait(0)
        leaves: dict[str, dict[str, Any]] = {}
        for name, array in self._arrays.items():
            assert array.count == math.prod(array.leaf.shape), f"{name} was not written whole"
            leaves[WEIGHTS + name] = {
                "dtype": array.leaf.dtype.name,
                "shape": list(array.leaf.shape),
                "checksum": array.checksum % 2**32,
            }
        try:
            seal(self._folder, leaves, {"data": [], "config": config})
        except OSError as error:
            raise CheckpointError(f"{self._folder} cannot be written: {brief(error)}") from error

    def close(self) -> None:
        """Returns once nothing is under way; what fails then is nobody's business any more."""
        while self._pending:
            with contextlib.suppress(ValueError):
                self._pending.popleft()[0].result()

    def _wait(self, most_bytes: int) -> None:
        """Returns once no more than that is under way."""
        while sum(size for _, size in self._pending) > most_bytes:
            written, _ = self._pending.popleft()
            try:
                written.result()
            except ValueError as error:
                message = f"{self._folder} cannot be written: {brief(error)}"
                raise CheckpointError(message) from error


class WeightsReader:
    """The weights of a step, of the newest one where a path holds several.

    Raises:
        CheckpointError: There is no checkpoint at this path.
        DamagedCheckpoint: What describes it is missing or changed.
    """

    def __init__(self, path: str | Path, key: str) -> None:
        self._source = find_source(path, key)
        self.folder = self._source.folder
        values = read_values(self.folder, where=str(self._source))
        self.config: dict[str, Any] = values["config"]
        saved: dict[str, dict[str, Any]] = values["checksums"]["leaves"]
        self._saved = {
            name.removeprefix(WEIGHTS): one
            for name, one in saved.items()
            if name.startswith(WEIGHTS)
        }
        self.leaves = {
            name: Leaf(tuple(one["shape"]), np.dtype(jnp.dtype(one["dtype"])))
            for name, one in self._saved.items()
        }
        self._context = ts.Context(_CONTEXT)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """The rows of an array in order, as many at a time as lie together on disk.

        Raises:
            DamagedCheckpoint: They cannot be read, or are not what was written; the latter is known
                after the last one.
        """
        leaf, checksum = self.leaves[name], 0
        try:
            spec = array_spec(self.folder, WEIGHTS + name)
            store = ts.open(spec, read=True, context=self._context).result()
            rows = (store.chunk_layout.read_chunk.shape or leaf.shape)[0] or leaf.shape[0]
            for at in range(0, leaf.shape[0], rows):
                end = min(at + rows, leaf.shape[0])
                piece = np.asarray(store[at:end].read().result())
                for chunk in chunks(piece.shape, _chunk_shape(leaf, stacked=False)):
                    checksum += part_checksum(piece[chunk], _moved(chunk, at), leaf.shape)
                yield piece
        except ValueError as error:
            raise self._damaged(f"{name} cannot be read: {brief(error)}") from error
        if checksum % 2**32 != self._saved[name]["checksum"]:
            raise self._damaged(f"{name} is not what was written")

    def _damaged(self, reason: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(f"{self._source} is damaged ({reason})")


def _chunk_shape(leaf: Leaf, *, stacked: bool) -> tuple[int, ...]:
    """What lies together on disk: of one layer, as many rows as are not too large."""
    lead = 1 if stacked else 0
    row_bytes = max(1, math.prod(leaf.shape[lead + 1 :]) * leaf.dtype.itemsize)
    rows = max(1, min(leaf.shape[lead], _MAX_CHUNK_BYTES // row_bytes))
    return (*(1,) * lead, rows, *leaf.shape[lead + 1 :])


def _moved(place: Place, rows: int) -> Place:
    """A part of an array's rows, as a part of the array."""
    return (slice(place[0].start + rows, place[0].stop + rows), *place[1:])

"""Tensors to files in the format of safetensors, one at a time.

By hand, as the library's writer wants all tensors of a file at once.
"""

import collections
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from maxtext.checkpoint.pieces import Leaf
from maxtext.conversion.safetensors import DTYPES, INDEX, METADATA, SINGLE

_SHARD_BYTES = 5_000_000_000
_BLOCK_BYTES = 2**24
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class FolderWriter:
    """Writes tensors in their order to one file or more.

    Args:
        folder: Where.
        tensors: All that follow, in their order.
        shard_bytes: Most of numbers in a file, unless one tensor is larger.

    Raises:
        OSError: A file cannot be written.
    """

    def __init__(
        self, folder: Path, tensors: Mapping[str, Leaf], *, shard_bytes: int = _SHARD_BYTES
    ) -> None:
        self._folder = folder
        self._tensors = tensors
        self._shards = _shards(tensors, shard_bytes)
        self._begun_by = {names[0]: file for file, names in self._shards.items()}
        self._queue = collections.deque(tensors)
        self._stream: Any = None

    def write(self, name: str, numbers: np.ndarray) -> None:
        """Writes the next tensor."""
        expected = self._queue.popleft()
        planned = self._tensors[name]
        assert expected == name, f"{name} in the place of {expected}"
        assert (numbers.shape, numbers.dtype) == (planned.shape, planned.dtype), name
        if name in self._begun_by:
            self.close()
            file = self._begun_by[name]
            self._stream = (self._folder / file).open("wb")
            self._stream.write(
                _header_bytes({one: self._tensors[one] for one in self._shards[file]})
            )
        # Row by row in blocks: a tensor that lies otherwise in memory is not copied whole.
        for block in _blocks(numbers):
            self._stream.write(np.ascontiguousarray(block).view(np.uint8).data)

    def finish(self) -> None:
        """Writes the index, where there is more than one file."""
        assert not self._queue, f"{self._queue[0]} was not written"
        self.close()
        if len(self._shards) == 1:
            return
        total = sum(one.num_bytes for one in self._tensors.values())
        places = {name: file for file, names in self._shards.items() for name in names}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        (self._folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")

    def close(self) -> None:
        """Closes the file under way."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _shards(tensors: Mapping[str, Leaf], shard_bytes: int) -> dict[str, list[str]]:
    groups: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if groups[-1] and size + tensor.num_bytes > shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += tensor.num_bytes
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    total = len(groups)
    return {
        f"model-{number:05}-of-{total:05}.safetensors": names
        for number, names in enumerate(groups, start=1)
    }


def _header_bytes(tensors: Mapping[str, Leaf]) -> bytes:
    header: dict[str, Any] = {METADATA: {"format": "pt"}}
    end = 0
    for name, one in tensors.items():
        start, end = end, end + one.num_bytes
        header[name] = {
            "dtype": _NAMES[one.dtype],
            "shape": list(one.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _blocks(numbers: np.ndarray) -> Iterator[np.ndarray]:
    rows = max(1, _BLOCK_BYTES // max(1, numbers[:1].nbytes))
    for start in range(0, len(numbers), rows):
        yield numbers[start : start + rows]

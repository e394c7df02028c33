"""Files with one JSON object a line."""

import mmap
import sys
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from maxtext.data.records import Document, Form, decode_utf8, parse_json

BLOCK_BYTES = 1 << 24
SECONDS_BEFORE_PROGRESS = 3.0


class JsonlFile:
    """Lines of a JSON object each; empty lines do not count.

    The file is read once, to find its lines; afterwards it is mapped, never held in memory.
    """

    def __init__(self, path: Path, form: Form) -> None:
        self.path = path
        self._form = form
        self._starts = _line_starts(path)
        self._map: mmap.mmap | None = None
        if not self._starts.size:
            raise ValueError(f"{path}:1: the file has no lines but empty ones")

    def __len__(self) -> int:
        return self._starts.size

    def read(self, index: int) -> Document:
        """The document of one line; raises as `RecordFile`."""
        content = self._mapped()
        start = int(self._starts[index])
        end = content.find(b"\n", start)
        cut_off = end < 0
        line = content[start : len(content) if cut_off else end]

        def where(offset: int = 0) -> str:
            del offset
            return f"{self.path}:{self._line_number(start)}"

        try:
            record = parse_json(decode_utf8(line, where), where)
        except ValueError as error:
            hint = "; the file ends without a newline and may be cut off" if cut_off else ""
            raise ValueError(f"{error}{hint}") from error
        return self._form.document(record, where)

    def close(self) -> None:
        """Unmaps the file."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map

    def _line_number(self, start: int) -> int:
        content, lines = self._mapped(), 1
        for at in range(0, start, BLOCK_BYTES):
            lines += content[at : min(at + BLOCK_BYTES, start)].count(b"\n")
        return lines

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None}


def _line_starts(path: Path) -> np.ndarray:
    size = path.stat().st_size
    ends: list[np.ndarray] = []
    with (
        path.open("rb") as file,
        tqdm(
            desc=f"finding lines of {path.name}",
            total=size,
            unit="B",
            unit_scale=True,
            delay=SECONDS_BEFORE_PROGRESS,
            file=sys.stderr,
            leave=False,
        ) as progress,
    ):
        offset = 0
        while block := file.read(BLOCK_BYTES):
            ends.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + offset)
            offset += len(block)
            progress.update(len(block))
    newlines = np.concatenate(ends)
    with path.open("rb") as file:
        first = len(BOM_UTF8) if file.read(len(BOM_UTF8)) == BOM_UTF8 else 0
    starts = np.concatenate([[first], newlines + 1])
    lengths = np.concatenate([newlines, [offset]]) - starts
    return starts[lengths > 0]

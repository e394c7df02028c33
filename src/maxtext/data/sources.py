"""Files of text as one random-access sequence of documents."""

import collections
import dataclasses
import glob
import hashlib
import os
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from maxtext.config.filesystem import COMPRESSED, SUFFIXES
from maxtext.data.arrayrecord import ArrayRecordFile
from maxtext.data.jsonl import JsonlFile
from maxtext.data.parquet import ParquetFile, RowGroupCache
from maxtext.data.records import Document, Form, RecordFile, decode_utf8

OPEN_FILES = 128


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file that is one document."""

    path: Path
    form: Form

    def __len__(self) -> int:
        return 1

    def read(self, index: int) -> Document:
        """The whole text.

        Raises:
            ValueError: The file is not UTF-8, or a text cannot be a document.
        """
        assert index == 0, index
        content = self.path.read_bytes().removeprefix(BOM_UTF8)
        text = decode_utf8(content, lambda at: f"{self.path}:{content.count(b'\n', 0, at) + 1}")
        return self.form.text_document(text, lambda: f"{self.path}:1")

    def close(self) -> None:
        """Does nothing: no file stays open."""


class FileSource:
    """The documents of several files, in the order of the files.

    Attributes:
        num_bytes: Size of all files.
        digest: What differs where other files would be read: names, sizes, first and last bytes.
    """

    def __init__(self, files: Sequence[RecordFile]) -> None:
        self.num_bytes = sum(file.path.stat().st_size for file in files)
        self.digest = _digest([file.path for file in files])
        self._files = files
        self._ends = np.cumsum([len(file) for file in files])
        self._open: collections.OrderedDict[int, None] = collections.OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Document:
        """One document.

        Raises:
            ValueError: Its record is damaged or lacks a column.
        """
        number = int(np.searchsorted(self._ends, index, side="right"))
        file = self._files[number]
        self._open[number] = None
        self._open.move_to_end(number)
        if len(self._open) > OPEN_FILES:
            oldest, _ = self._open.popitem(last=False)
            self._files[oldest].close()
        return file.read(index - int(self._ends[number]) + len(file))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": collections.OrderedDict()}

    def __repr__(self) -> str:
        return f"{len(self)} documents in {len(self._files)} files of {self.num_bytes} bytes"


def find_files(patterns: str, *, key: str) -> tuple[Path, ...]:
    """Files of comma-separated paths and globs, sorted, each one once.

    Raises:
        ValueError: Nothing is given, or a pattern matches no file.
    """
    found: set[str] = set()
    given = [one.strip() for one in patterns.split(",") if one.strip()]
    if not given:
        raise ValueError(f"{key} is empty; dataset_type=grain needs paths or globs there")
    for pattern in given:
        expanded = os.path.expanduser(pattern)
        names = [expanded] if os.path.isfile(expanded) else glob.glob(expanded, recursive=True)
        files = [name for name in names if os.path.isfile(name)]
        if not files:
            remote = "; remote files must be mounted or copied first" if "://" in pattern else ""
            raise ValueError(f"{key}: no file matches {pattern!r} (from {os.getcwd()}){remote}")
        found.update(os.path.normpath(name) for name in files)
    return tuple(Path(name) for name in sorted(found))


def open_source(paths: Sequence[Path], *, file_type: str, form: Form) -> FileSource:
    """Opens files and reads the first and last record of each.

    Args:
        file_type: As the key `grain_file_type`.

    Raises:
        ValueError: A file has an unknown suffix, is empty or damaged, or lacks a column.
    """
    cache = RowGroupCache()
    files: list[RecordFile] = []
    for path in paths:
        file = _open_file(path, _file_type(path, file_type), form, cache)
        for index in sorted({0, len(file) - 1}):
            file.read(index)
        file.close()
        files.append(file)
    return FileSource(files)


def _file_type(path: Path, asked: str) -> str:
    if path.suffix in COMPRESSED:
        raise ValueError(f"{path} is compressed; records in it cannot be found: decompress it")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}:1: the file is empty")
    if asked != "auto":
        return asked
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"{path}: unknown suffix {path.suffix!r}; known are {', '.join(SUFFIXES)}; for "
            "another one set grain_file_type to jsonl, txt, parquet or arrayrecord"
        )
    return SUFFIXES[path.suffix]


def _open_file(path: Path, file_type: str, form: Form, cache: RowGroupCache) -> RecordFile:
    match file_type:
        case "jsonl":
            return JsonlFile(path, form)
        case "parquet":
            return ParquetFile(path, form, cache)
        case "arrayrecord":
            return ArrayRecordFile(path, form)
        case _:
            return TextFile(path, form)


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{path.name}\n{size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(4096))
            file.seek(max(0, size - 4096))
            digest.update(file.read(4096))
    return digest.hexdigest()

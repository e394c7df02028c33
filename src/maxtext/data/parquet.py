"""Parquet files; needs the extra `parquet`."""

import collections
from pathlib import Path
from typing import Any

import numpy as np

from maxtext.data.records import Document, Form, require_columns

CACHE_BYTES = 1 << 30


class RowGroupCache:
    """The decoded row groups that were used last, up to `CACHE_BYTES` in a process.

    A row group can only be decoded whole. Shuffled reading of more than fits here decodes a row
    group for each document: write such data as jsonl or arrayrecord.
    """

    def __init__(self) -> None:
        self._tables: collections.OrderedDict[tuple[Path, int], Any] = collections.OrderedDict()
        self._bytes = 0

    def table(self, path: Path, group: int, names: tuple[str, ...]) -> Any:
        """Columns of a row group, as a pyarrow table."""
        table = self._tables.pop((path, group), None)
        if table is None:
            import pyarrow.parquet

            with pyarrow.parquet.ParquetFile(path) as file:
                table = file.read_row_group(group, columns=list(names))
            self._bytes += table.nbytes
        self._tables[path, group] = table
        while self._bytes > CACHE_BYTES and len(self._tables) > 1:
            _, oldest = self._tables.popitem(last=False)
            self._bytes -= oldest.nbytes
        return table

    def __reduce__(self) -> tuple[type["RowGroupCache"], tuple[()]]:
        return RowGroupCache, ()


class ParquetFile:
    """Rows of a parquet file."""

    def __init__(self, path: Path, form: Form, cache: RowGroupCache) -> None:
        self.path = path
        self._form = form
        self._cache = cache
        self._ends = _row_group_ends(path, form)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, index: int) -> Document:
        """The document of one row; raises as `RecordFile`."""
        import pyarrow as pa

        group = int(np.searchsorted(self._ends, index, side="right"))
        row = index - (int(self._ends[group - 1]) if group else 0)

        def where() -> str:
            return f"{self.path}:row {index + 1}"

        try:
            table = self._cache.table(self.path, group, self._form.names)
            record = {name: table[name][row].as_py() for name in self._form.names}
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{where()}: damaged: {error}") from error
        return self._form.document(record, where)

    def close(self) -> None:
        """Does nothing: no file stays open."""


def _row_group_ends(path: Path, form: Form) -> np.ndarray:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{path}: parquet files need pyarrow: pip install pyarrow") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            metadata, names = file.metadata, file.schema_arrow.names
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}:row 1: no parquet file, or cut off: {error}") from error
    require_columns(names, form, lambda: f"{path}:row 1")
    if not metadata.num_rows:
        raise ValueError(f"{path}:row 1: the file has no rows")
    groups = range(metadata.num_row_groups)
    return np.cumsum([metadata.row_group(group).num_rows for group in groups])

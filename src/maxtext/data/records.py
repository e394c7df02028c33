"""What the file formats share: a file of records, and how a record becomes a text."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns whose texts are joined by newlines, and the key that says so."""

    names: tuple[str, ...]
    key: str


class RecordFile(Protocol):
    """A file whose records are read in any order; errors name the file and the record."""

    @property
    def path(self) -> Path:
        """Where the file lies."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> str:
        """The text of one record.

        Raises:
            ValueError: The record is damaged or lacks a column.
        """
        ...

    def close(self) -> None:
        """Gives back what the file holds open; reading opens it again."""
        ...


def decode_utf8(content: bytes, where: Callable[[int], str]) -> str:
    """Text of bytes.

    Args:
        where: The place of a byte offset, for messages.

    Raises:
        ValueError: The bytes are not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where(error.start)}: not UTF-8 (byte 0x{content[error.start]:02x}); convert the "
            "file to UTF-8, or unpack it if it is compressed"
        ) from error


def parse_json(content: str, where: Callable[[], str]) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: The text is no JSON.
    """
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where()}: invalid JSON: {error.msg} at column {error.pos + 1}"
        ) from error
    except RecursionError as error:
        raise ValueError(f"{where()}: invalid JSON: nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{where()}: invalid JSON: a number of too many digits") from error


def join_columns(record: object, columns: Columns, where: Callable[[], str]) -> str:
    """The texts of the columns of one record, joined by newlines.

    Raises:
        ValueError: The record is no mapping, lacks a column, or a value is no text.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"{where()}: a record must be a JSON object, not {type(record).__name__}")
    for name in columns.names:
        if name not in record:
            there = ", ".join(map(str, record)) or "none"
            raise ValueError(f"{where()}: no column {name!r}; there are {there}; set {columns.key}")
        if not isinstance(record[name], str):
            raise ValueError(
                f"{where()}: column {name!r} is {type(record[name]).__name__}, not text"
            )
    text = "\n".join(record[name] for name in columns.names)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where()}: half a surrogate pair (\\u{ord(text[error.start]):04x}) is no character"
        ) from error
    return text

"""What the file formats share: a file of records, and how a record becomes a document."""

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

type Where = Callable[[], str]


@dataclasses.dataclass(frozen=True)
class Chat:
    """A text of which some parts are answers.

    Attributes:
        text: All of it.
        answers: Start and end of each part whose tokens count, in order.
        templated: A chat template made the text: BOS and EOS stand in it where they belong.
    """

    text: str
    answers: tuple[tuple[int, int], ...]
    templated: bool


type Document = str | Chat


class Form(Protocol):
    """How a record becomes a document."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it takes."""
        ...

    @property
    def key(self) -> str:
        """The key that names them."""
        ...

    def document(self, record: object, where: Where) -> Document:
        """The document of a record with columns.

        Raises:
            ValueError: A column is missing or holds something else.
        """
        ...

    def text_document(self, text: str, where: Where) -> Document:
        """The document of a record that is nothing but text.

        Raises:
            ValueError: It cannot be one.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns whose texts are joined by newlines, and the key that says so."""

    names: tuple[str, ...]
    key: str

    def document(self, record: object, where: Where) -> str:
        """The texts of the columns of a record; raises as `Form`."""
        values = column_values(record, self, where)
        for name, value in zip(self.names, values, strict=True):
            if not isinstance(value, str):
                raise ValueError(f"{where()}: column {name!r} is {type(value).__name__}, not text")
        return checked_text("\n".join(map(str, values)), where)

    def text_document(self, text: str, where: Where) -> str:
        """The text itself."""
        del where
        return text


class Source(Protocol):
    """Documents that are read in any order."""

    @property
    def num_bytes(self) -> int:
        """Size of all of them, about."""
        ...

    @property
    def digest(self) -> str:
        """What differs where other documents would be read."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Document:
        """One document.

        Raises:
            ValueError: Its record is damaged or lacks a column.
        """
        ...


class RecordFile(Protocol):
    """A file whose records are read in any order; errors name the file and the record."""

    @property
    def path(self) -> Path:
        """Where the file lies."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> Document:
        """The document of one record.

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


def parse_json(content: str, where: Where) -> Any:
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


def column_values(record: object, form: Form, where: Where) -> list[object]:
    """What the columns of a form hold in a record.

    Raises:
        ValueError: The record is no mapping or lacks a column.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"{where()}: a record must be a JSON object, not {type(record).__name__}")
    require_columns(record, form, where)
    return [record[name] for name in form.names]


def require_columns(there: Collection[object], form: Form, where: Where) -> None:
    """Refuses records without a column that the form takes."""
    for name in form.names:
        if name not in there:
            raise ValueError(
                f"{where()}: no column {name!r}; there are {', '.join(map(str, there)) or 'none'}; "
                f"set {form.key}"
            )


def checked_text(text: str, where: Where) -> str:
    """The text, refused where it cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where()}: half a surrogate pair (\\u{ord(text[error.start]):04x}) is no character"
        ) from error
    return text

"""ArrayRecord files whose records are text, JSON objects or serialized `tf.train.Example`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from maxtext.data.records import Document, Form, decode_utf8, parse_json

type RecordType = Literal["text", "json", "example"]


class ArrayRecordFile:
    """Records of an ArrayRecord file; the first one tells what all of them are."""

    def __init__(self, path: Path, form: Form) -> None:
        import grain

        self.path = path
        self._form = form
        try:
            # Its stubs leave out that it has a length and can be closed.
            self._records: Any = grain.sources.ArrayRecordDataSource(str(path))
            self._length = len(self._records)
        except (ValueError, RuntimeError, OSError) as error:
            raise ValueError(f"{path}:record 1: no ArrayRecord, or cut off: {error}") from error
        if not self._length:
            raise ValueError(f"{path}:record 1: the file has no records")
        self._type = _record_type(self._raw(0))

    def __len__(self) -> int:
        return self._length

    def read(self, index: int) -> Document:
        """The document of one record; raises as `RecordFile`."""

        def where(offset: int = 0) -> str:
            del offset
            return f"{self.path}:record {index + 1}"

        raw = self._raw(index)
        if self._type == "example":
            features = parse_example(raw, where())
            record = {name: decode_utf8(value, where) for name, value in features.items()}
            return self._form.document(record, where)
        text = decode_utf8(raw, where)
        if self._type == "json":
            return self._form.document(parse_json(text, where), where)
        return self._form.text_document(text, where)

    def close(self) -> None:
        """Closes the reader."""
        self._records.__exit__(None, None, None)

    def _raw(self, index: int) -> bytes:
        try:
            return self._records[index]
        except (ValueError, RuntimeError, OSError, IndexError) as error:
            raise ValueError(f"{self.path}:record {index + 1}: damaged: {error}") from error


def _record_type(record: bytes) -> RecordType:
    if record.lstrip().startswith(b"{"):
        return "json"
    try:
        parse_example(record, "")
    except ValueError:
        return "text"
    return "example" if record else "text"


def parse_example(record: bytes, where: str) -> dict[str, bytes]:
    """The bytes features of a serialized `tf.train.Example`; the first value of each.

    Raises:
        ValueError: The record is no such message.

    Source: tensorflow/core/example/example.proto and feature.proto: Example.features = 1,
    Features.feature = 1 (a map: key 1, value 2), Feature.bytes_list = 1, BytesList.value = 1.
    """
    found: dict[str, bytes] = {}
    try:
        for features in _messages(record, 1, known=(1,)):
            for entry in _messages(features, 1, known=(1,)):
                name = b"".join(_messages(entry, 1, known=(1, 2))).decode()
                for feature in _messages(entry, 2, known=(1, 2)):
                    for values in _messages(feature, 1, known=(1, 2, 3)):
                        found.update((name, value) for value in list(_messages(values, 1))[:1])
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: no tf.train.Example") from error
    return found


def _messages(message: bytes, number: int, *, known: tuple[int, ...] = (1,)) -> Iterator[bytes]:
    """Length-delimited fields `number` of a message whose fields are all length-delimited.

    Raises:
        IndexError: The bytes are no such message.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 != 2 or tag >> 3 not in known:
            raise IndexError(tag)
        size, at = _varint(message, at)
        if at + size > len(message):
            raise IndexError(at)
        if tag >> 3 == number:
            yield message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at

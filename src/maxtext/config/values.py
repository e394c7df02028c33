"""A value as it was written, read by the type of its key and by nothing else.

Text is taken to the letter. Numbers are decimal: `10`, `1_000`, `-1`, `0.5`, `.5`, `1e-4`; octal,
hexadecimal, base 60, inf and nan do not exist, and a leading zero is refused because YAML 1.1 reads
it as octal. Flags are `true` and `false` in any case.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import cast

import yaml

from maxtext.config.errors import did_you_mean
from maxtext.config.keys import Key

type Rule = tuple[str, ...]
type Value = str | bool | int | float | tuple[str, ...]
type Json = str | bool | int | float | list["Json"] | dict[str, "Json"] | None

_DIGITS = r"(?:0|[1-9][0-9]{0,2}(?:_[0-9]{3})+|[1-9][0-9]{0,17})"
_WHOLE = re.compile(rf"[+-]?{_DIGITS}")
_NUMBER = re.compile(rf"[+-]?(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{{1,3}})?")
# In quotes, or without any of what ends an item.
_ITEM = re.compile(r"""\s*(?:'([^']*)'|"([^"]*)"|([^'",\[\]{}][^,\[\]{}]*))\s*,""")
# Devices count, and reckon, in 32 bits.
_LARGEST = 2**31 - 1
_LARGEST_NUMBER = 3.4e38
_NULL_TAG = "tag:yaml.org,2002:null"


class Refused(ValueError):
    """A value that its key does not take.

    Attributes:
        message: What is allowed.
        hint: What would work; may be empty.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def parse_text(key: Key, text: str) -> Value:
    """The value of `key` written as `text` on the command line or in the environment.

    Raises:
        Refused: It is not of the key's type. Bounds and choices are checked by the schema.
    """
    _check_characters(text)
    match key.kind:
        case "text":
            return text
        case "flag":
            return _flag(key, text)
        case "whole":
            return _whole(key, text.strip())
        case "number":
            return _number(key, text.strip())
        case "choice":
            return text.strip()
        case "list":
            return _list(key, text.strip())
        case "rules":
            raise AssertionError("rules are read one by one")


def parse_node(key: Key, node: yaml.Node) -> Value:
    """The value of `key` in a YAML file; quotes are respected, YAML's own types are not used.

    Raises:
        Refused: As `parse_text`, or it is a mapping, a list or null where none belongs.
    """
    if isinstance(node, yaml.SequenceNode) and key.kind == "list":
        return _items(node, f"must be {key.allowed}")
    if not isinstance(node, yaml.ScalarNode):
        hint = "put text in quotes" if key.kind == "text" else ""
        raise Refused(f"must be {key.allowed}", hint=hint)
    text = scalar_text(node)
    if key.kind == "text" and text and node.tag == _NULL_TAG:
        raise Refused("must be text", hint="write '' for empty, or put the word in quotes")
    return parse_text(key, text)


def parse_json(key: Key, value: Json) -> Value:
    """The value of `key` in the JSON that `flatten` made.

    Raises:
        Refused: It is of another type.
    """
    is_names = isinstance(value, list) and all(isinstance(item, str) for item in value)
    if key.kind == "list" and is_names:
        return tuple(cast(list[str], value))
    most = _LARGEST if key.kind == "whole" else _LARGEST_NUMBER
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not abs(cast(float, value)) <= most:
        raise Refused(f"must be {key.allowed}, and no more than {most}")
    fits = {
        "text": isinstance(value, str),
        "choice": isinstance(value, str),
        "flag": isinstance(value, bool),
        "whole": number and isinstance(value, int),
        "number": number,
    }
    if not fits.get(key.kind, False):
        raise Refused(f"must be {key.allowed}")
    return cast(Value, value)


def parse_rule(node: yaml.Node) -> Rule:
    """The mesh axes of one logical axis: a list, one name, or nothing for replicated.

    Raises:
        Refused: It is none of these.
    """
    allowed = "must be a list of mesh axes, the name of one, or null for replicated"
    if isinstance(node, yaml.SequenceNode):
        return _items(node, allowed)
    if not isinstance(node, yaml.ScalarNode):
        raise Refused(allowed)
    return () if node.tag == _NULL_TAG or not node.value else (scalar_text(node),)


def scalar_text(node: yaml.ScalarNode) -> str:
    """The text of a scalar without its quotes."""
    assert isinstance(node.value, str)
    return node.value


def node_text(node: yaml.Node) -> str:
    """A node in one line, as a message shows it."""
    if isinstance(node, yaml.ScalarNode):
        return scalar_text(node)
    if isinstance(node, yaml.SequenceNode):
        return "[...]" if _nested(node) else f"[{', '.join(node_text(n) for n in node.value)}]"
    return "{...}"


def value_text(value: Value | Json) -> str:
    """A parsed value as the user would write it on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        plain = value.isprintable() and value == value.strip() and value not in ("", "''")
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {value_text(item)}' for name, item in value.items())}}}"
    if isinstance(value, Sequence):
        return f"[{', '.join(value_text(item) for item in value)}]"
    return str(value)


def _check_characters(text: str) -> None:
    if "\0" in text:
        raise Refused("must not hold the character NUL")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused("must be text in UTF-8") from error


def _flag(key: Key, text: str) -> bool:
    word = text.strip().casefold()
    if word not in ("true", "false"):
        meant = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false"}
        meant["0"] = "false"
        hint = f"write {key.name}={meant[word]}" if word in meant else ""
        raise Refused(f"must be {key.allowed}", hint=hint)
    return word == "true"


def _whole(key: Key, text: str) -> int:
    if _WHOLE.fullmatch(text):
        if abs(number := int(text)) <= _LARGEST:
            return number
        raise Refused(f"must be {key.allowed}", hint=f"no whole number may be over {_LARGEST}")
    raise Refused(f"must be {key.allowed}", hint=_whole_hint(key, text))


def _whole_hint(key: Key, text: str) -> str:
    if _NUMBER.fullmatch(text) and (number := float(text)).is_integer() and abs(number) < 1e15:
        return f"write {key.name}={int(number)}"
    return _leading_zeros(key, text)


def _leading_zeros(key: Key, text: str) -> str:
    stripped = text.lstrip("0") or "0"
    leading = text.startswith("0") and text != stripped and _NUMBER.fullmatch(stripped)
    return f"write it without leading zeros: {key.name}={stripped}" if leading else ""


def _number(key: Key, text: str) -> float:
    if _NUMBER.fullmatch(text):
        if abs(number := float(text)) <= _LARGEST_NUMBER:
            return number
        raise Refused(f"must be {key.allowed}", hint=f"no number may be over {_LARGEST_NUMBER}")
    raise Refused(f"must be {key.allowed}", hint=_leading_zeros(key, text))


def _list(key: Key, text: str) -> tuple[str, ...]:
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not inner.strip() and inner != text:
        return ()
    items: list[str] = []
    rest = f"{inner},"
    while rest:
        found = _ITEM.match(rest)
        item = "" if found is None else found[1] or found[2] or (found[3] or "").strip()
        if found is None or not item:
            hint = (
                "put an item with commas or brackets in quotes" if set(inner) & set("[]{}") else ""
            )
            raise Refused(f"must be {key.allowed}", hint=hint)
        items.append(item)
        rest = rest[found.end() :]
    return tuple(items)


def _items(node: yaml.SequenceNode, allowed: str) -> tuple[str, ...]:
    items: list[str] = []
    for item in cast(list[yaml.Node], node.value):
        if not isinstance(item, yaml.ScalarNode) or item.tag == _NULL_TAG or not item.value:
            raise Refused(allowed)
        items.append(scalar_text(item))
    return tuple(items)


def _nested(node: yaml.SequenceNode) -> bool:
    return not all(isinstance(item, yaml.ScalarNode) for item in cast(list[yaml.Node], node.value))


def choice_hint(key: Key, value: Value) -> str:
    """The choice that `value` was most likely meant to be, as a hint."""
    words = value if isinstance(value, tuple) else (str(value),)
    wrong = [word for word in words if key.choices and word not in key.choices]
    return did_you_mean(wrong[0], [choice for choice in key.choices if choice]) if wrong else ""

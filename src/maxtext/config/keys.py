"""The schema seen from the user's side: flat key names, kinds of value, bounds in words."""

import dataclasses
import functools
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAliasType, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from maxtext.config.schema import Config, Rules
from maxtext.config.section import Section

type Kind = Literal["text", "flag", "whole", "number", "choice", "list", "rules"]

RULES = "logical_axis_rules"
BASE_CONFIG = "base_config"

_KINDS: dict[type, Kind] = {str: "text", bool: "flag", int: "whole", float: "number"}
_NOUNS: dict[Kind, str] = {
    "text": "text",
    "flag": "true or false",
    "whole": "a whole number",
    "number": "a number",
    "rules": "a mapping of logical axes to lists of mesh axes, such as {mlp: [tensor], norm: []}",
}


@dataclasses.dataclass(frozen=True)
class Key:
    """One key as the user sees it.

    Attributes:
        name: What the user types.
        section: Its section, the name of a field of `Config`.
        field: Its name in the section.
        kind: How its text is read.
        choices: The words that are allowed, empty where any is.
        bounds: The limits of a number in words, `at least 0`.
        doc: What it means.
    """

    name: str
    section: str
    field: str
    kind: Kind
    choices: tuple[str, ...]
    bounds: str
    doc: str

    @property
    def allowed(self) -> str:
        """What a value may be, to go after `must be`."""
        words = ", ".join(choice or "'' (empty)" for choice in self.choices)
        if self.kind == "choice":
            return f"one of {words}"
        if self.kind == "list":
            return f"a list of {words}" if words else "a list such as [a, b] or a,b"
        return f"{_NOUNS[self.kind]}, {self.bounds}" if self.bounds else _NOUNS[self.kind]


@functools.cache
def sections() -> Mapping[str, type[Section]]:
    """Each section of `Config` by its name, in order."""
    found: dict[str, type[Section]] = {}
    for name, info in Config.model_fields.items():
        assert isinstance(info.annotation, type)
        assert issubclass(info.annotation, Section)
        found[name] = info.annotation
    return types.MappingProxyType(found)


@functools.cache
def keys() -> Mapping[str, Key]:
    """Every key by the name that the user types, in the order of the schema."""
    found = [
        _key(section, field, info)
        for section, kind in sections().items()
        for field, info in kind.model_fields.items()
    ]
    return types.MappingProxyType({key.name: key for key in found})


def _key(section: str, field: str, info: FieldInfo) -> Key:
    annotation: Any = info.annotation
    bare, limits = _unwrap(annotation)
    kind, choices = ("rules", ()) if annotation is Rules else _kind(bare)
    return Key(
        name=info.alias or field,
        section=section,
        field=field,
        kind=kind,
        choices=choices,
        bounds=_bounds((*info.metadata, *limits), kind),
        doc=info.description or "",
    )


def _unwrap(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """The bare type and its limits, through `type` aliases and `Annotated`."""
    if isinstance(annotation, TypeAliasType):
        return _unwrap(annotation.__value__)
    if get_origin(annotation) is not Annotated:
        return annotation, ()
    bare, *metadata = get_args(annotation)
    limits: list[Any] = []
    for item in metadata:
        limits += item.metadata if isinstance(item, FieldInfo) else [item]
    return bare, tuple(limits)


def _kind(bare: Any) -> tuple[Kind, tuple[str, ...]]:
    if get_origin(bare) is Literal:
        return "choice", get_args(bare)
    if get_origin(bare) is tuple:
        item, _ = _unwrap(get_args(bare)[0])
        return "list", get_args(item) if get_origin(item) is Literal else ()
    return _KINDS[bare], ()


def _bounds(limits: Iterable[Any], kind: Kind) -> str:
    words: list[str] = []
    for limit in limits:
        match limit:
            case annotated_types.Ge(ge=bound):
                words.append(f"at least {bound}")
            case annotated_types.Gt(gt=int(bound)) if kind == "whole":
                words.append(f"at least {bound + 1}")
            case annotated_types.Gt(gt=bound):
                words.append(f"above {bound}")
            case annotated_types.Le(le=bound):
                words.append(f"at most {bound}")
            case annotated_types.Lt(lt=bound):
                words.append(f"below {bound}")
            case _:
                raise AssertionError(f"a limit without words: {limit!r}")
    return " and ".join(words)

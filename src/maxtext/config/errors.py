"""What is wrong with a user's settings, each problem in a line or two."""

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Literal

type Level = Literal["default", "model", "checkpoint", "file", "command line", "environment"]

_LINE = 100
_SHOWN = 60
_LONGEST = 500


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a value was set.

    Attributes:
        level: Which source it is, in the order of `Level` from the weakest to the strongest.
        place: The same for people: `run.yml:12`, `command line`, `environment M_STEPS`.
    """

    level: Level
    place: str

    @property
    def by_user(self) -> bool:
        """Whether the user set it, rather than the defaults, a model file or a checkpoint."""
        return self.level in ("file", "command line", "environment")

    def __str__(self) -> str:
        return self.place


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that the user has to change.

    Attributes:
        key: The user's name of the key; empty where a whole file or argument is meant.
        message: What is allowed or wrong, without a full stop.
        value: As it was written; None where there is none to show.
        origin: Where it was set; None where the code that found it cannot know.
        hint: What would work; may be empty.
        beside: The other settings that it concerns, each `key=value (origin)`.
        details: Further lines.
    """

    key: str
    message: str
    value: str | None = None
    origin: Origin | None = None
    hint: str = ""
    beside: tuple[str, ...] = ()
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        subject = setting_text(self.key, self.value, self.origin)
        head = " with ".join((subject, *self.beside)) if subject else ""
        line = _printable(f"{head}: {self.message}" if head else self.message)
        hint = _printable(self.hint)
        if hint:
            line += f"; {hint}" if len(line + hint) < _LINE else f"\n  {hint}"
        return "\n  ".join((line, *map(_printable, self.details)))


@dataclasses.dataclass(frozen=True)
class Clash:
    """Something wrong with one setting or with several together.

    Attributes:
        keys: The users' names of all keys involved, the first the likeliest to be changed.
        message: What is wrong.
        hint: What would work; may be empty.
    """

    keys: tuple[str, ...]
    message: str
    hint: str = ""


class ConfigError(ValueError):
    """All problems of one run; its text is what the user reads, nothing more is needed.

    Raised with a text, it is the one problem that the text tells.
    """

    def __init__(self, problems: Iterable[Problem] | str) -> None:
        self.problems = (Problem("", problems),) if isinstance(problems, str) else tuple(problems)
        assert self.problems
        super().__init__("\n".join(map(str, self.problems)))


def setting_text(key: str, value: str | None, origin: Origin | None) -> str:
    """A setting in a message: `steps=0 (run.yml:3)`, as much of it as there is."""
    key = _cut(key)
    text = key if value is None else f"{key}={_cut(value) or "''"}".removeprefix("=")
    if origin is None:
        return text
    return f"{text} ({origin})" if text else str(origin)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `name` was most likely meant to be, if any is near."""
    by_folded = {known.casefold(): known for known in names}
    folded = name.casefold().replace("-", "_")
    found = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A hint with the nearest of `names`, empty if none is near."""
    found = nearest(name, names)
    return f"did you mean {found}?" if found is not None else ""


def _cut(text: str, length: int = _SHOWN) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _printable(text: str) -> str:
    """The text, not too long, with line breaks and other control characters as escapes."""
    return "".join(
        char if char.isprintable() else repr(char)[1:-1] for char in _cut(text, _LONGEST)
    )

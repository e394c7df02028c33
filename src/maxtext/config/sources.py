"""What each source says: YAML files, the command line, the environment, a checkpoint."""

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import yaml

from maxtext.config.errors import (
    ConfigError,
    Level,
    Origin,
    Problem,
    nearest,
    setting_text,
)
from maxtext.config.keys import BASE_CONFIG, RULES, keys
from maxtext.config.upstream_keys import INSTEAD, UPSTREAM
from maxtext.config.values import (
    Refused,
    Value,
    node_text,
    parse_node,
    parse_rule,
    parse_text,
)
from maxtext.config.yaml_files import Entry, YamlFile, compose, mapping_entries, repeated

_ASSIGNMENT = re.compile(r"(?:--)?([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_TIGHT_COLON = re.compile(r":(?=\S)")
_VARIABLE = re.compile(r"M_[A-Z][A-Z0-9_]*")
_ENVIRONMENT = Origin("environment", "environment")
COMMAND_LINE = Origin("command line", "command line")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One key that a source sets.

    Attributes:
        name: The key, or `logical_axis_rules.<axis>` for one rule.
        value: What it is set to.
        text: The value as it was written.
        origin: Where.
    """

    name: str
    value: Value
    text: str
    origin: Origin

    def __str__(self) -> str:
        return setting_text(self.name, self.text, self.origin)


@dataclasses.dataclass(frozen=True)
class Source:
    """All that a source sets, and what is wrong with it."""

    settings: Mapping[str, Setting] = dataclasses.field(default_factory=dict[str, Setting])
    problems: tuple[Problem, ...] = ()

    def over(self, weaker: "Source") -> "Source":
        """Both, this one where they meet."""
        return Source({**weaker.settings, **self.settings}, weaker.problems + self.problems)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The command line, taken apart."""

    config_file: str | None
    pairs: tuple[tuple[str, str], ...]
    problems: tuple[Problem, ...]


def file_source(file: YamlFile, level: Level) -> Source:
    """What a YAML file sets, `base_config` aside."""
    entries = [entry for entry in file.entries if entry.name != BASE_CONFIG]
    settings: dict[str, Setting] = {}
    problems = list(file.problems)
    for entry in entries:
        origin = Origin(level, file.place(entry))
        for found in _read_entry(entry, origin, file=file, level=level):
            if isinstance(found, Setting):
                settings[found.name] = found
            else:
                problems.append(found)
    return Source(settings, tuple(problems))


def arguments(argv: Sequence[str]) -> Arguments:
    """`[file.yml] key=value | --key=value | --key value ...`."""
    words = collections.deque(argv)
    config_file = words.popleft() if words and _is_file(words[0]) else None
    pairs: list[tuple[str, str]] = []
    problems: list[Problem] = []
    while words:
        word = words.popleft()
        if found := _ASSIGNMENT.fullmatch(word):
            pairs.append((found[1], found[2]))
        elif not word.startswith("--"):
            problems.append(_no_assignment(word))
        elif words and not words[0].startswith("--"):
            pairs.append((word[2:], words.popleft()))
        else:
            message = f"has no value; write {word[2:]}=VALUE"
            problems.append(Problem(word, message, origin=COMMAND_LINE))
    return Arguments(config_file, tuple(pairs), tuple(problems))


def command_line_source(given: Arguments) -> Source:
    """What the command line sets."""
    problems = list(given.problems)
    written: dict[str, str] = {}
    for name, text in given.pairs:
        if name in written:
            message = f"is given twice on the command line, {written[name]!r} first; keep one"
            problems.append(Problem(name, message, value=text))
        else:
            written[name] = text
    return _text_source(((name, text, COMMAND_LINE) for name, text in written.items()), problems)


def environment_source(environ: Mapping[str, str]) -> Source:
    """What the variables `M_KEY` set.

    `M_` and capitals only is taken for a key, and an error where it is none; a name with small
    letters is another program's, except where it spells a key.
    """
    problems: list[Problem] = []
    written: list[tuple[str, str, Origin]] = []
    for variable in sorted(name for name in environ if name.startswith("M_")):
        name = variable[2:].lower()
        origin = Origin("environment", f"environment {variable}")
        if _VARIABLE.fullmatch(variable):
            written.append((name, environ[variable], origin))
        elif name in keys():
            message = f"is written in capitals in the environment: {_variable(name)}"
            problems.append(Problem(variable, message, value=environ[variable]))
    return _text_source(written, problems)


def unknown(name: str, text: str | None, origin: Origin) -> Problem:
    """The problem of a key that does not exist."""
    in_environment = origin.level == "environment"
    near = nearest(name, keys())
    message, hint = "there is no such key", "`--help WORD` lists the keys about a word"
    if name in INSTEAD:
        hint = INSTEAD[name]
    elif name in UPSTREAM:
        message, hint = "is a key of upstream MaxText that this project does not have", ""
    elif name == BASE_CONFIG:
        hint = "it belongs into a YAML file; give that file as the first argument"
    elif near is not None:
        hint = f"did you mean {_variable(near) if in_environment else near}?"
    if not in_environment:
        return Problem(name, message, value=text, origin=origin, hint=hint)
    hint = f"{hint} (if it is another program's, unset it: env -u {_variable(name)})".strip()
    return Problem(_variable(name), message, value=text, origin=_ENVIRONMENT, hint=hint)


def _variable(name: str) -> str:
    """The environment variable of a key."""
    return f"M_{name.upper()}"


def _is_file(word: str) -> bool:
    return not word.startswith("-") and not _ASSIGNMENT.fullmatch(word)


def _no_assignment(word: str) -> Problem:
    message = "is not key=value"
    hint = "a YAML file comes first, everything after it is key=value"
    if word.lstrip("-") in keys():
        hint = f"write {word.lstrip('-')}=VALUE"
    return Problem(word, message, origin=COMMAND_LINE, hint=hint)


def _text_source(written: Iterable[tuple[str, str, Origin]], problems: Iterable[Problem]) -> Source:
    settings: dict[str, Setting] = {}
    found_problems = list(problems)
    for name, text, origin in written:
        for found in _read_text(name, text, origin):
            if isinstance(found, Setting):
                settings[found.name] = found
            else:
                found_problems.append(found)
    return Source(settings, tuple(found_problems))


def _read_text(name: str, text: str, origin: Origin) -> Iterator[Setting | Problem]:
    if name not in keys():
        yield unknown(name, text, origin)
    elif name == RULES:
        yield from _read_rules_text(text, origin)
    else:
        try:
            yield Setting(name, parse_text(keys()[name], text), text, origin)
        except Refused as refused:
            yield Problem(name, refused.message, value=text, origin=origin, hint=refused.hint)


def _read_rules_text(text: str, origin: Origin) -> Iterator[Setting | Problem]:
    try:
        node = compose(text, name=str(origin))
    except ConfigError:
        node = None
    if not isinstance(node, yaml.MappingNode):
        message = f"must be {keys()[RULES].allowed}"
        spaced = _TIGHT_COLON.sub(": ", text)
        hint = f"YAML wants a space after a colon: {spaced}" if spaced != text else ""
        yield Problem(RULES, message, value=text, origin=origin, hint=hint)
        return
    entries = mapping_entries(node)
    for problem in repeated(entries, name=str(origin), prefix=f"{RULES}."):
        yield dataclasses.replace(problem, message="is given twice; keep one", origin=origin)
    for entry in entries:
        yield _read_rule(entry, origin)


def _read_entry(
    entry: Entry, origin: Origin, *, file: YamlFile, level: Level
) -> Iterator[Setting | Problem]:
    if entry.name not in keys():
        yield unknown(entry.name, node_text(entry.node), origin)
    elif entry.name == RULES:
        if not isinstance(entry.node, yaml.MappingNode):
            message = f"must be {keys()[RULES].allowed}"
            yield Problem(RULES, message, value=node_text(entry.node), origin=origin)
            return
        rules = mapping_entries(entry.node)
        yield from repeated(rules, name=file.name, prefix=f"{RULES}.")
        for rule in rules:
            yield _read_rule(rule, Origin(level, file.place(rule)))
    else:
        yield _read_value(entry, origin)


def _read_value(entry: Entry, origin: Origin) -> Setting | Problem:
    text = node_text(entry.node)
    try:
        return Setting(entry.name, parse_node(keys()[entry.name], entry.node), text, origin)
    except Refused as refused:
        return Problem(entry.name, refused.message, value=text, origin=origin, hint=refused.hint)


def _read_rule(entry: Entry, origin: Origin) -> Setting | Problem:
    name, text = f"{RULES}.{entry.name}", node_text(entry.node)
    try:
        return Setting(name, parse_rule(entry.node), text, origin)
    except Refused as refused:
        return Problem(name, refused.message, value=text, origin=origin)

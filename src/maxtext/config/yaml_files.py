"""Config files: where they are found, and what each says at which line."""

import dataclasses
import functools
import importlib.resources
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import yaml

from maxtext.config.errors import ConfigError, Origin, Problem, nearest
from maxtext.config.keys import BASE_CONFIG
from maxtext.config.values import scalar_text

# PyYAML has no types.
_compose = cast(
    Callable[..., yaml.Node | None],
    yaml.compose,  # pyright: ignore[reportUnknownMemberType]
)
_Loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@dataclasses.dataclass(frozen=True)
class Entry:
    """One key of a YAML mapping, its value not yet read."""

    name: str
    node: yaml.Node
    line: int


@dataclasses.dataclass(frozen=True)
class YamlFile:
    """A file's entries in order.

    Attributes:
        path: Where it lies.
        name: How messages call it.
        entries: One for each key; of a key that is given twice the first.
        problems: The keys that are given twice.
    """

    path: Path
    name: str
    entries: tuple[Entry, ...]
    problems: tuple[Problem, ...]

    def entry(self, name: str) -> Entry | None:
        """The entry of this name, if there is one."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def place(self, entry: Entry) -> str:
        """`file:line` of an entry."""
        return f"{self.name}:{entry.line}"


@functools.cache
def config_folder() -> Path:
    """The bundled configs: in the package where it is installed, at the root in a checkout."""
    installed = importlib.resources.files("maxtext") / "configs"
    if installed.is_dir():
        return Path(str(installed))
    return Path(__file__).parents[3] / "configs"


def base_file() -> Path:
    """The bundled `base.yml`, which holds the default of every key."""
    return config_folder() / "base.yml"


def find_file(
    name: str, *, folder: Path, origin: Origin, key: str = "", other_than: Path | None = None
) -> Path:
    """The config file that `name` means: in `folder`, else among the bundled ones.

    A file cannot start from itself: `other_than` is passed over in `folder`, so that a user's own
    base.yml may start from the bundled one.

    Raises:
        ConfigError: There is none.
    """
    path = Path(os.path.expanduser(name))
    places = (folder / path, config_folder() / path, config_folder().parent / path)
    for place in places:
        if os.path.exists(place) and place != other_than:
            return place
    bundled = {file.stem: file.name for file in config_folder().glob("*.yml")}
    meant = nearest(path.stem, bundled)
    raise ConfigError(
        [
            Problem(
                key,
                f"no such file, neither in {folder.resolve()} nor among the bundled configs",
                value=name,
                origin=origin,
                hint=f"did you mean {bundled[meant]}?" if meant is not None else "",
            )
        ]
    )


def read_file(path: Path) -> YamlFile:
    """The entries of a YAML file.

    Raises:
        ConfigError: It cannot be read, is not UTF-8, not YAML or not a mapping.
    """
    name = display_name(path)
    origin = Origin("file", name)
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise ConfigError([Problem("", message, origin=origin)]) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        message = "is not text in UTF-8"
        origin = Origin("file", f"{name}:{line}")
        raise ConfigError([Problem("", message, origin=origin)]) from error
    node = compose(text, name=name)
    if node is None:
        raise ConfigError([Problem("", "holds no keys", origin=origin)])
    return _mapping(node, path=path, name=name)


def compose(text: str, *, name: str) -> yaml.Node | None:
    """The node tree of a YAML text, None where it is empty.

    Raises:
        ConfigError: It is not YAML.
    """
    try:
        return _compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark else name
        message = f"not valid YAML: {error.problem or error.context}"
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        place, message = name, f"not valid YAML: {' '.join(str(error).split())}"
    except RecursionError:
        place, message = name, "not valid YAML: nested too deeply"
    hint = "text that holds ': ' or ' #', or starts with one of [ { * & ! @ %, goes in quotes"
    raise ConfigError([Problem("", message, origin=Origin("file", place), hint=hint)])


def mapping_entries(node: yaml.MappingNode) -> tuple[Entry, ...]:
    """The entries of a mapping node, those given twice included."""
    pairs = cast(list[tuple[yaml.Node, yaml.Node]], node.value)
    return tuple(
        Entry(
            name=scalar_text(key) if isinstance(key, yaml.ScalarNode) else "?",
            node=value,
            line=int(key.start_mark.line) + 1,
        )
        for key, value in pairs
    )


def chain(path: Path) -> tuple[YamlFile, ...]:
    """The file and those that its `base_config` names, the nearest first.

    Raises:
        ConfigError: One cannot be read, or the chain comes back to a file it holds.
    """
    files = [read_file(path)]
    while (entry := files[-1].entry(BASE_CONFIG)) is not None:
        origin = Origin("file", files[-1].place(entry))
        value = entry.node.value if isinstance(entry.node, yaml.ScalarNode) else None
        if not value:
            message = "must be the name of a YAML file"
            raise ConfigError([Problem(BASE_CONFIG, message, origin=origin)])
        here = files[-1].path
        after = find_file(
            value, folder=here.parent, origin=origin, key=BASE_CONFIG, other_than=here
        )
        if any(after.samefile(file.path) for file in files):
            message = "leads back to a file that starts from this one"
            raise ConfigError([Problem(BASE_CONFIG, message, value=value, origin=origin)])
        files.append(read_file(after))
    return tuple(files)


def display_name(path: Path) -> str:
    """How messages call a file: `configs/...` where it is bundled, else the path as given."""
    if path.is_relative_to(config_folder()):
        return str(Path("configs") / path.relative_to(config_folder()))
    return str(path)


def repeated(entries: tuple[Entry, ...], *, name: str, prefix: str = "") -> tuple[Problem, ...]:
    """A problem for each entry whose name was there before."""
    first: dict[str, Entry] = {}
    problems: list[Problem] = []
    for entry in entries:
        before = first.setdefault(entry.name, entry)
        if before is not entry:
            message = f"is given twice in this file, first at line {before.line}; keep one"
            origin = Origin("file", f"{name}:{entry.line}")
            problems.append(Problem(prefix + entry.name, message, origin=origin))
    return tuple(problems)


def _mapping(node: yaml.Node, *, path: Path, name: str) -> YamlFile:
    if not isinstance(node, yaml.MappingNode):
        message = "must be a mapping, one `key: value` a line"
        raise ConfigError([Problem("", message, origin=Origin("file", name))])
    entries = mapping_entries(node)
    kept = {entry.name: entry for entry in reversed(entries)}
    return YamlFile(path, name, tuple(reversed(kept.values())), repeated(entries, name=name))

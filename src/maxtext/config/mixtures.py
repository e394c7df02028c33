"""Files of several kinds, each read as often as its weight says."""

import dataclasses
import math
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import cast

import yaml

from maxtext.config.schema_training import DataConfig
from maxtext.config.values import scalar_text
from maxtext.config.yaml_files import Entry, mapping_entries, read_file

# Documents after which the order of the parts repeats; a table as long is held in memory.
LONGEST_PERIOD = 1_000_000
_EXAMPLE = "'a*.jsonl,0.3;b*.jsonl,0.7'"


@dataclasses.dataclass(frozen=True)
class Part:
    """Files that share a weight.

    Attributes:
        name: What metrics call it; empty where there is no other part.
        patterns: Paths and globs, separated by commas.
        weight: Documents of it to those of other parts; the sum of all parts' may be any number.
    """

    name: str
    patterns: str
    weight: Fraction


def train_parts(data: DataConfig) -> tuple[Part, ...]:
    """The parts of the training files, at least one.

    Raises:
        ValueError: A weight is missing or no number above 0, or the YAML file is not one of parts.
    """
    if data.grain_train_mixture_config_path:
        return read_mixture(Path(os.path.expanduser(data.grain_train_mixture_config_path)))
    return split_parts(data.grain_train_files)


def split_parts(text: str) -> tuple[Part, ...]:
    """The parts of `patterns,weight;patterns,weight`; text without a weight is one part.

    Raises:
        ValueError: As `train_parts`.
    """
    groups = [one.strip() for one in text.split(";") if one.strip()]
    if len(groups) < 2 and ";" not in text and _weight_of(text) is None:
        return (Part("", text, Fraction(1)),)
    patterns: list[str] = []
    weights: list[Fraction] = []
    for group in groups:
        weight = _weight_of(group)
        if weight is None:
            raise ValueError(f"{group!r} has no weight; write {_EXAMPLE}")
        patterns.append(group.rpartition(",")[0].strip())
        weights.append(_checked(weight, of=repr(patterns[-1])))
        if not patterns[-1].strip(", "):
            raise ValueError(f"the weight {group!r} has no files before it; write {_EXAMPLE}")
    twice = [one for number, one in enumerate(patterns) if one in patterns[:number]]
    if twice:
        raise ValueError(f"{twice[0]!r} is given twice; keep one, with one weight")
    named = zip(_names(patterns), patterns, weights, strict=True)
    return _of_a_period(tuple(Part(*one) for one in named))


def read_mixture(path: Path) -> tuple[Part, ...]:
    """The parts of a YAML file: of each, by its name, the `path` and the `weight`.

    Raises:
        ValueError: As `train_parts`; the message names file and line.
    """
    file = read_file(path)
    if file.problems:
        raise ValueError(str(file.problems[0]))
    return _of_a_period(tuple(_part(entry, file.place(entry)) for entry in file.entries))


def shares(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Whole numbers in proportion to the weights, the smallest that are exact."""
    total = sum(weights, Fraction(0))
    period = math.lcm(*((weight / total).denominator for weight in weights))
    return tuple(int(weight / total * period) for weight in weights)


def _part(entry: Entry, place: str) -> Part:
    if not isinstance(entry.node, yaml.MappingNode):
        raise ValueError(f"{place}: {entry.name} must have a path and a weight")
    found = {one.name: one for one in mapping_entries(entry.node)}
    if found.keys() != {"path", "weight"}:
        names = ", ".join(found) or "nothing"
        raise ValueError(f"{place}: {entry.name} must have a path and a weight, not {names}")
    texts = {name: _text(one.node) for name, one in found.items()}
    weight = _number(texts["weight"])
    if weight is None or not texts["path"]:
        raise ValueError(
            f"{place}: {entry.name} must have a path that is text and a weight that is a number"
        )
    return Part(entry.name, texts["path"], _checked(weight, of=entry.name, place=f"{place}: "))


def _text(node: yaml.Node) -> str:
    """The text of a node; of a list, its texts with commas between."""
    if isinstance(node, yaml.SequenceNode):
        return ",".join(_text(one) for one in cast(list[yaml.Node], node.value))
    return scalar_text(node).strip() if isinstance(node, yaml.ScalarNode) else ""


def _weight_of(group: str) -> Fraction | None:
    """What follows the last comma, where that is a number."""
    _, comma, last = group.rpartition(",")
    return _number(last) if comma else None


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        return None


def _checked(weight: Fraction, *, of: str, place: str = "") -> Fraction:
    if weight <= 0:
        raise ValueError(f"{place}the weight of {of} must be above 0; leave out what is not read")
    return weight


def _of_a_period(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    if not parts:
        raise ValueError(f"names no files; write {_EXAMPLE}")
    period = sum(shares([part.weight for part in parts]))
    if period > LONGEST_PERIOD:
        raise ValueError(
            f"the weights are exact only every {period} documents, at most {LONGEST_PERIOD} can "
            "be; round them, for example to three digits"
        )
    return parts


def _names(patterns: Sequence[str]) -> list[str]:
    """The shortest ends of the paths that tell them apart, of each the first path."""
    paths = [one.split(",")[0].strip().split("/") for one in patterns]
    for depth in range(1, max(map(len, paths), default=0) + 1):
        names = ["/".join(path[-depth:]) for path in paths]
        bare = depth == 1 and any(name.startswith("*") for name in names)
        if len(set(names)) == len(names) and not bare:
            return names
    return list(patterns)

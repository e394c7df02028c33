"""The text of a compiled program, as instructions that know how often they run."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator

_HEADER = re.compile(r"(?:ENTRY )?%([^\s(]+) \(.*\{$")
_DEFINITION = re.compile(r"\s+(?:ROOT )?%([^\s=]+) = (.*)$")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
_CALLED = re.compile(
    r"(?:calls|to_apply|true_computation|false_computation|branch_computations)="
    r"(\{[^}]*\}|%[^\s,]+)"
)
_LOOP = re.compile(r"(condition|body)=%([^\s,]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_OPEN, _CLOSE = "([{", ")]}"


@dataclasses.dataclass(frozen=True)
class HloArray:
    """An array on one device.

    Attributes:
        dtype: As XLA writes it: `f32`, `bf16`, `s32`, `pred`.
        shape: Of the part that a device holds.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        width = re.search(r"\d+", self.dtype)
        # A bool takes a byte, and a token nothing.
        bits = int(width[0]) if width else 8 * (self.dtype == "pred")
        return -(-math.prod(self.shape) * bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of a program.

    Attributes:
        name: Its name in the text.
        opcode: What it does, such as `dot` or `all-gather-start`.
        type: Of its result, as text.
        operands: Names of what it takes.
        attributes: All that follows, as text.
        runs: How often a run of the program comes to it; None where a loop around it has no known
            end. A branch counts as taken.
        computation: The function that it stands in.
    """

    name: str
    opcode: str
    type: str
    operands: tuple[str, ...]
    attributes: str
    runs: int | None
    computation: str

    @property
    def arrays(self) -> tuple[HloArray, ...]:
        """All arrays of its result."""
        return arrays_of(self.type)

    @property
    def op_name(self) -> str:
        """Where it comes from in the traced code: jax's name stack, such as `jit(f)/while/dot`."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""


def instructions(text: str) -> list[Instruction]:
    """Every instruction of a compiled program: `compiled.as_text()`."""
    functions = _functions(text)
    # A function stands before those that call it, so the entry is the last.
    *others, entry = functions
    runs: dict[str, int | None] = {**dict.fromkeys(others, 0), entry: 1}
    for name in (entry, *reversed(others)):
        for one in functions[name]:
            for called, times in _calls(one):
                runs[called] = _plus(runs[called], _times(runs[name], times))
    found = itertools.chain.from_iterable(functions.values())
    return [dataclasses.replace(one, runs=runs[one.computation]) for one in found]


def arrays_of(text: str) -> tuple[HloArray, ...]:
    """The arrays of a type: one, or those of a tuple."""
    return tuple(
        HloArray(dtype, tuple(int(dim.lstrip("<=")) for dim in dims.split(",") if dim))
        for dtype, dims in _ARRAY.findall(text)
    )


def parts_of(text: str) -> list[str]:
    """The members of a tuple's type; of any other, it alone."""
    return _split(text[1:-1]) if text.startswith("(") else [text]


def _functions(text: str) -> dict[str, list[Instruction]]:
    """The instructions of each function, in the order of the text; `runs` is not known yet."""
    functions: dict[str, list[Instruction]] = {}
    name = ""
    for line in re.sub(r"/\*index=\d+\*/", "", text).splitlines():
        if header := _HEADER.match(line):
            name = header[1]
            functions[name] = []
        elif name and (definition := _DEFINITION.match(line)):
            functions[name].append(_instruction(*definition.groups(), computation=name))
    if not functions:
        raise ValueError("this is no text of a compiled program: it has no function")
    return functions


def _instruction(name: str, text: str, *, computation: str) -> Instruction:
    end = _end(text) if text.startswith("(") else text.index(" ")
    rest = text[end:].lstrip()
    opcode, _, operands = rest.partition("(")
    end_of_operands = _end(f"({operands}")
    names = [one.rsplit("%", 1)[-1] for one in _split(operands[: end_of_operands - 2])]
    attributes = operands[end_of_operands - 1 :]
    return Instruction(name, opcode, text[:end], tuple(names), attributes, None, computation)


def _calls(one: Instruction) -> Iterator[tuple[str, int | None]]:
    """The functions that an instruction calls, and how often."""
    if one.opcode.endswith(("-done", "-update")):
        # What began it has called.
        return
    if one.opcode == "while":
        known = _TRIPS.search(one.attributes)
        trips = int(known[1]) if known else None
        for role, called in _LOOP.findall(one.attributes):
            yield called, _plus(trips, int(role == "condition"))
        return
    for names in _CALLED.findall(one.attributes):
        for called in names.strip("{}").split(","):
            yield called.strip().lstrip("%"), 1


def _end(text: str) -> int:
    """The place after the bracket that closes the first one."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in _OPEN) - (letter in _CLOSE)
        if depth == 0:
            return place + 1
    raise ValueError(f"a bracket is not closed: {text[:80]}")


def _split(text: str) -> list[str]:
    """The parts between the commas that lie in no brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in _OPEN) - (letter in _CLOSE)
        if letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, last] if (last := text[start:].strip()) else parts


def _plus(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _times(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first * second

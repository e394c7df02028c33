"""What a compiled program really does: its collectives, its memory, its matrix products."""

import dataclasses
import math
import re
from collections.abc import Iterable

import jax
import numpy as np
from jax.sharding import Mesh
from jax.stages import Compiled

from maxtext.parallel.hlo import HloArray, Instruction, arrays_of, instructions, parts_of

type Groups = tuple[tuple[int, ...], ...]

_KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
    "send",
    "recv",
)
# Those of two devices each, from the first to the second.
_PAIRED = ("collective-permute", "send", "recv")
_PAIRS = re.compile(r"source_target_pairs=\"?(\{[\d{},\s]*\}\})")
_LISTED = re.compile(r"replica_groups=(\{[\d{},\s]*\})")
_IOTA = re.compile(r"replica_groups=(\[[^\s]*)")
_AXES = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, ?device_ids=\(([^)]*\)?)\))? ?\{([^}]*)\}")
_AXIS = re.compile(r"'([^']*)'(?:=(\d+))?(?::\((\d+)\)(\d+))?")
_IOTA_FORM = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_CONTRACTED = re.compile(
    r"lhs_contracting_dims=\{([\d,]*)\}|\"lhs_contracting_dimensions\":\[([\d,\"]*)\]"
)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a program; an asynchronous one is one, whatever it is written as.

    Attributes:
        kind: What it does, as XLA calls it: `all-gather`, `all-reduce`, `reduce-scatter`,
            `all-to-all`, `collective-permute`, ...
        arrays: What a device has after it; several where the compiler joined several, or where it
            cut one into a part for each device.
        groups: The devices that do it together, by their place in `mesh.devices.flat`; for
            `collective-permute`, `send` and `recv` the pairs of sender and receiver.
        axes: The mesh axes that the devices of a group differ in, in the order of the mesh.
        runs: How often one run of the program does it; None where it lies in a loop of which the
            compiler does not say how often it turns.
        op_name: Where it comes from: jax's name stack.
    """

    kind: str
    arrays: tuple[HloArray, ...]
    groups: Groups
    axes: tuple[str, ...]
    runs: int | None
    op_name: str

    @property
    def bytes_moved(self) -> float:
        """Bytes that a device sends each time, at the least that the kind needs.

        A ring's: (n - 1) / n of the whole for a group of n, twice that for `all-reduce`. An upper
        bound for `ragged-all-to-all`. A `recv` counts nothing: the `send` has it.
        """
        ways = max(map(len, self.groups), default=1)
        size = sum(one.num_bytes for one in self.arrays)
        others = (ways - 1) / ways
        shares = {"all-reduce": 2 * others, "reduce-scatter": ways - 1.0, "send": 1.0, "recv": 0.0}
        shares |= {"collective-permute": 1.0, "collective-broadcast": 1.0}
        return size * shares.get(self.kind, others)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of a program, in bytes a device.

    Attributes:
        arguments: What it is given.
        outputs: What it returns.
        aliased: The part of both that is one: donated arguments.
        temporaries: What it needs while it runs.
        peak: The most at once. For a CPU the sum of all the above, since the compiler's figure
            leaves temporaries out there.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    peak: int


def collectives(compiled: Compiled, mesh: Mesh) -> list[Collective]:
    """The collectives of a program, in the order of its text.

    Args:
        compiled: The program.
        mesh: Of all the devices that it was compiled for.

    Raises:
        ValueError: It was compiled for another number of devices.
    """
    text = compiled.as_text()
    assert text is not None, "the backend has no text of its programs"
    num = re.search(r"num_partitions=(\d+)", text)
    if (devices := int(num[1]) if num else 1) != mesh.size:
        raise ValueError(f"the program is of {devices} devices and the mesh has {mesh.size}")
    made = [_collective(one, mesh) for one in instructions(text)]
    return [one for one in made if one is not None]


def totals(
    found: Iterable[Collective],
) -> dict[tuple[str, tuple[str, ...]], tuple[int | None, float | None]]:
    """How often each kind is done over the same axes, and bytes moved by a device, in one run.

    None where a loop has no known end.
    """
    sums: dict[tuple[str, tuple[str, ...]], tuple[int | None, float | None]] = {}
    for one in found:
        runs, moved = sums.get((one.kind, one.axes), (0, 0.0))
        if one.runs is None or runs is None or moved is None:
            sums[one.kind, one.axes] = (None, None)
        else:
            sums[one.kind, one.axes] = (runs + one.runs, moved + one.runs * one.bytes_moved)
    return dict(sorted(sums.items()))


def memory(compiled: Compiled) -> Memory | None:
    """The memory of a program; None where the backend does not say."""
    stats = compiled.memory_analysis()
    if stats is None:
        return None
    held = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    places = [one.device_set for one in jax.tree.leaves(compiled.output_shardings)]
    on_cpu = any(device.platform == "cpu" for devices in places for device in devices)
    return Memory(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        aliased=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        peak=held + stats.temp_size_in_bytes if on_cpu else stats.peak_memory_in_bytes,
    )


def flops(compiled: Compiled) -> int | None:
    """FLOPs of one device's matrix products in one run of a program.

    `compiled.cost_analysis()` counts the body of a loop once; this counts it as often as it runs.
    Products inside of kernels (Pallas, cuDNN) are not seen, and nothing else counts as work.

    Returns:
        None where a loop with products has no known end, or the compiler has made a convolution
        of a product (TPU).
    """
    text = compiled.as_text()
    assert text is not None, "the backend has no text of its programs"
    program = instructions(text)
    types = {(one.computation, one.name): one.type for one in program}
    total = 0
    for one in program:
        contracted = _CONTRACTED.search(one.attributes)
        if one.opcode == "convolution" or (contracted and one.runs is None):
            return None
        if contracted:
            left = arrays_of(types[one.computation, one.operands[0]])[0].shape
            dims = re.findall(r"\d+", contracted[1] or contracted[2] or "")
            depth = math.prod(left[int(dim)] for dim in dims)
            total += 2 * depth * math.prod(one.arrays[0].shape) * (one.runs or 0)
    return total


def _collective(one: Instruction, mesh: Mesh) -> Collective | None:
    """What an instruction is as a collective; None where it is none, or ends one."""
    kinds = [kind for kind in _KINDS if one.opcode in (kind, f"{kind}-start")]
    if not kinds:
        return None
    (kind,) = kinds
    result = one.type
    # What begins one holds (operands, results, ...) until it ends, save for this kind.
    if one.opcode.endswith("-start") and kind != "all-reduce":
        result = parts_of(result)[1]
    elif kind in ("send", "recv"):
        result = parts_of(result)[0]
    groups = _pairs(one) if kind in _PAIRED else _groups(one.attributes, mesh.size)
    return Collective(
        kind=kind,
        arrays=arrays_of(result),
        groups=groups,
        axes=_axes(groups, mesh),
        runs=one.runs,
        op_name=one.op_name,
    )


def _axes(groups: Groups, mesh: Mesh) -> tuple[str, ...]:
    """The mesh axes that devices of a group differ in."""
    differ = np.zeros(mesh.devices.ndim, bool)
    for group in groups:
        differ |= np.ptp(np.array(np.unravel_index(group, mesh.devices.shape)), axis=1) > 0
    return tuple(name for name, one in zip(mesh.axis_names, differ, strict=True) if one)


def _pairs(one: Instruction) -> Groups:
    found = _PAIRS.search(one.attributes)
    return _rows(found[1]) if found else ()


def _groups(attributes: str, size: int) -> Groups:
    """The groups of devices, in each of the forms that XLA writes them in."""
    if found := _AXES.search(attributes):
        return _groups_of_axes(*found.groups(default=""))
    if found := _IOTA.search(attributes):
        return _tuples(_iota(found[1]))
    found = _LISTED.search(attributes)
    # No groups mean one of all.
    return (_rows(found[1]) if found else ()) or (tuple(range(size)),)


def _groups_of_axes(mesh: str, ids: str, axes: str) -> Groups:
    """Groups written as axes of a mesh, `mesh['a'=2,'b'=4] {'a','b':(2)2}`.

    The second axis there is the inner half of b: past a part of size 2, one of size 2.
    """
    sizes = {name: int(size) for name, size, *_ in _AXIS.findall(mesh)}
    devices = np.arange(math.prod(sizes.values()))
    places = dict(zip(sizes, np.unravel_index(devices, tuple(sizes.values())), strict=True))
    for name, _, before, part in _AXIS.findall(axes):
        ways = int(part or sizes[name])
        after = sizes[name] // (int(before or 1) * ways)
        places[name] = places[name] - places[name] // after % ways * after
    if ids:
        devices = _iota(ids).ravel() if "<=" in ids else np.array(re.findall(r"\d+", ids), int)
    # Those that differ in nothing else are together.
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, *place in zip(devices.tolist(), *places.values(), strict=True):
        groups.setdefault(tuple(place), []).append(device)
    return tuple(map(tuple, groups.values()))


def _iota(text: str) -> np.ndarray:
    """Numbers written as `[4,2]<=[2,4]T(1,0)`: those of a grid, transposed, in another shape."""
    found = _IOTA_FORM.match(text)
    assert found is not None, f"unknown groups of devices: {text}"
    shape, grid, turned = (
        [int(n) for n in re.findall(r"\d+", one or "")] for one in found.groups()
    )
    numbers = np.arange(math.prod(grid)).reshape(grid)
    return (numbers.transpose(turned) if turned else numbers).reshape(shape)


def _rows(text: str) -> Groups:
    """Groups written as `{{0,1},{2,3}}`."""
    rows = re.findall(r"\{([\d,\s]+)\}", text)
    return tuple(tuple(int(number) for number in row.split(",")) for row in rows)


def _tuples(groups: np.ndarray) -> Groups:
    return tuple(tuple(row) for row in groups.tolist())

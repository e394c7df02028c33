"""How weights and activations lie on the devices, written to disk: `debug_sharding=true`."""

import dataclasses
import json
import logging
import math
import os
import re
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from maxtext.config.schema import RunConfig
from maxtext.parallel.layout import Axes, Layout
from maxtext.parallel.params import named_leaves
from maxtext.types import DType

_logger = logging.getLogger(__name__)
_COLUMN = 66
_PACKAGE = Path(__file__).parent
_LAYER = re.compile(r"(decoder/[^/]+)/(\d+)(/.*)")


@dataclasses.dataclass
class Placed:
    """One array, and how its parts lie.

    Attributes:
        name: Of a weight; of an activation the file and the line that asked.
        dtype: Its type.
        shape: Of all of it.
        axes: Its logical axes; None for what is made of others.
        asked: Where the rules have it.
        got: Where the compiler put it, or where it is held; None before that is known.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    axes: Axes | None
    asked: NamedSharding
    got: Sharding | None = None

    @property
    def kind(self) -> str:
        """Type and shape in words, `bfloat16[1,96,4096]`."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def differs(self) -> bool:
        """Whether it lies otherwise than it was asked to."""
        return self.got is not None and not self.got.is_equivalent_to(self.asked, len(self.shape))

    def found(self, got: Sharding) -> None:
        """Takes down where it is; of several times that it is asked, one that differs."""
        if not self.differs:
            self.got = got

    def figures(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        part = self.asked.shard_shape(self.shape)
        parts = math.prod(self.shape) // math.prod(part)
        return {
            "name": self.name,
            "dtype": str(self.dtype),
            "shape": list(self.shape),
            "axes": self.axes and list(self.axes),
            "asked": _spec(self.asked, len(self.shape)),
            "got": self.got and _spec(self.got, len(self.shape)),
            "bytes_per_device": math.prod(part) * jax.numpy.dtype(self.dtype).itemsize,
            "copies": self.asked.mesh.size // parts,
        }


class ShardingLog:
    """What was asked for and what came of it: `Layout.log`.

    Attributes:
        folder: Where it is written.
        held: The weights, in the order of the tree.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._activations: dict[Hashable, Placed] = {}
        self.held: list[Placed] = []
        self._warned: set[str] = set()

    @property
    def activations(self) -> list[Placed]:
        """In the order of the code, each line, type and shape once."""
        return list(self._activations.values())

    def activation(self, x: jax.Array, axes: Axes, sharding: NamedSharding, /) -> jax.Array:
        """`x` in its place, taken down; the compiler will say where it put it."""
        placed = Placed(_caller(), x.dtype.name, x.shape, axes, sharding)
        key = (placed.name, placed.kind, str(sharding.spec))
        placed = self._activations.setdefault(key, placed)
        x = jax.lax.with_sharding_constraint(x, sharding)
        jax.debug.inspect_array_sharding(x, callback=placed.found)
        return x

    def weights(self, specs: Any, held: Any, /, *, layout: Layout, apart: bool) -> None:
        """Takes down the weights of a tree, as `placed_weights`."""
        self.held = placed_weights(specs, held, layout=layout, apart=apart)

    def write(self) -> None:
        """Writes what is known so far; warns of each difference once."""
        if jax.process_index() > 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "activations.txt").write_text(activation_lines(self.activations))
        (self.folder / "weights.txt").write_text(weight_lines(self.held))
        both = {"activations": self.activations, "weights": self.held}
        figures = {name: [one.figures() for one in arrays] for name, arrays in both.items()}
        (self.folder / "sharding.json").write_text(json.dumps(figures, indent=1) + "\n")
        for one in (*self.activations, *self.held):
            if one.differs and one.name not in self._warned:
                self._warned.add(one.name)
                figures = one.figures()
                where = (one.name, one.kind, figures["got"], figures["asked"])
                _logger.warning("%s %s lies %s and was to lie %s", *where)


def sharding_log(run: RunConfig, name: str) -> ShardingLog | None:
    """The log of the run that is called `name`; None where `debug_sharding` is false."""
    if not run.debug_sharding:
        return None
    return ShardingLog(Path(os.path.expanduser(run.base_output_directory), name, "sharding"))


def placed_weights(specs: Any, held: Any, *, layout: Layout, apart: bool) -> list[Placed]:
    """The weights of a tree; layers that are apart are called `layers_0`, `layers_1`, ...

    Args:
        specs: Declared, the layers of a group stacked.
        held: The same as arrays or as shapes with shardings, of which a group may be a tuple of
            layers, and may hold what is made of the declared ones.
        layout: With the rules.
        apart: List the layers of a stack one by one.
    """
    declared = named_leaves(specs)
    found: list[Placed] = []
    for name, leaf in named_leaves(held).items():
        path = _LAYER.fullmatch(name)
        label = f"{path[1]}_{path[2]}{path[3]}" if path else name
        param = declared.get(f"{path[1]}{path[3]}" if path else name)
        axes = None if param is None else param.axes[1:] if path else param.axes
        asked = leaf.sharding if axes is None else layout.sharding(axes, leaf.shape)
        one = Placed(label, leaf.dtype.name, leaf.shape, axes, asked, leaf.sharding)
        found += _layers(one) if apart and axes is not None and axes[0] == "layers" else [one]
    return found


def _layers(stacked: Placed) -> list[Placed]:
    """The layers of a stack."""
    assert stacked.axes is not None
    head, group, rest = stacked.name.split("/", 2)
    shardings = [
        NamedSharding(one.mesh, PartitionSpec(*_parts(one, len(stacked.shape))[1:]))
        for one in (stacked.asked, stacked.got)
        if isinstance(one, NamedSharding)
    ]
    return [
        Placed(
            f"{head}/{group}_{index}/{rest}",
            stacked.dtype,
            stacked.shape[1:],
            stacked.axes[1:],
            *shardings,
        )
        for index in range(stacked.shape[0])
    ]


def activation_lines(activations: list[Placed]) -> str:
    """A line each: file and line, type, shape and spec."""
    return "".join(
        f"{f'{one.name}] {one.kind}':.<{_COLUMN}} {_text(one)}.\n" for one in activations
    )


def weight_lines(weights: list[Placed]) -> str:
    """A line each: name, type, shape and spec."""
    return "".join(f"{one.name:.<{_COLUMN}} {one.kind} {_text(one)}\n" for one in weights)


def _text(one: Placed) -> str:
    return str(_parts(one.asked, len(one.shape)))


def _parts(sharding: NamedSharding, rank: int) -> tuple[Any, ...]:
    """What splits each dim."""
    return (*sharding.spec, *(None for _ in range(rank - len(sharding.spec))))


def _spec(sharding: Sharding, rank: int) -> Any:
    """The same for JSON, or whatever the compiler made up in words."""
    if isinstance(sharding, NamedSharding):
        return [list(one) if isinstance(one, tuple) else one for one in _parts(sharding, rank)]
    return str(sharding)


def _caller() -> str:
    """The file and the line that asked, outside of this package."""
    frame = sys._getframe(1)
    while Path(frame.f_code.co_filename).parent == _PACKAGE and frame.f_back is not None:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"

"""Logical axis names to mesh axes: the only place that knows both."""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

type Axes = tuple[str | None, ...]
type MeshAxes = tuple[str, ...]

# The mesh axis that holds copies of the weights.
DATA = "data"

# Logical axes of what is only on its way: it lies as what it becomes, unless a table of serving
# says otherwise. Nobody sets them.
_ON_THE_WAY = {
    "looked_up_embed": "activation_embed",
    "attn_projection_length": "attn_activation_length",
    "attn_projection_heads": "activation_heads",
    "attn_projection_kv_length": "attn_activation_length",
    "attn_projection_kv_heads": "activation_kv_heads",
    "attn_out_length": "activation_norm_length",
    "attn_out_embed": "activation_embed",
}

_current: contextvars.ContextVar["Layout | None"] = contextvars.ContextVar("layout", default=None)


class Recorder(Protocol):
    """What takes down how arrays lie: `debug.ShardingLog`."""

    def activation(self, x: jax.Array, axes: Axes, sharding: NamedSharding, /) -> jax.Array:
        """`x`, pinned."""
        ...

    def weights(self, specs: Any, held: Any, /, *, layout: "Layout", apart: bool) -> None:
        """Takes down weights."""
        ...

    def write(self) -> None:
        """Writes what is known so far."""
        ...


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh, and for every logical axis the mesh axes that split it.

    Attributes:
        mesh: The device mesh, its axes of type `AxisType.Auto`.
        rules: One entry for each logical axis, the major mesh axis first; an empty tuple means
            replicated.
        balanced_rows: Give devices that split a row parts of equal causal work: see `RowSplit`.
        log: Takes down what `constrain` is asked for; None: nothing does.
    """

    mesh: Mesh
    rules: Mapping[str, MeshAxes]
    balanced_rows: bool = False
    log: Recorder | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name, axes in self.rules.items():
            for axis in axes:
                if axis not in self.mesh.axis_names:
                    raise ValueError(
                        f"logical_axis_rules maps {name!r} to {axis!r}, which is no mesh axis: "
                        f"{', '.join(self.mesh.axis_names)}"
                    )

    def spec(self, axes: Axes, shape: Sequence[int]) -> PartitionSpec:
        """The partition spec of an array of this shape with these logical axes.

        Mesh axes of size one are left out, so one table serves every mesh.

        Raises:
            ValueError: The ranks differ, an axis has no rule, two axes claim one mesh axis, or a
                dimension does not divide by the mesh axes that split it.
        """
        if len(axes) != len(shape):
            raise ValueError(f"{len(axes)} logical axes {axes} for an array of shape {shape}")
        parts = [self.mesh_axes(name) for name in axes]
        claimed = [axis for part in parts for axis in part]
        if len(claimed) != len(set(claimed)):
            twice = next(axis for axis in claimed if claimed.count(axis) > 1)
            names = [name for name, part in zip(axes, parts, strict=True) if twice in part]
            raise ValueError(
                f"mesh axis {twice!r} is used twice in one array: logical_axis_rules gives it to "
                f"{' and '.join(map(repr, names))}; take it from one of them"
            )
        for name, part, size in zip(axes, parts, shape, strict=True):
            ways = self._ways(part)
            if size % ways:
                by = " x ".join(f"{axis} {self.mesh.shape[axis]}" for axis in part)
                # The activations that such a weight makes are split in the same way.
                alike = [name, *(a for a in (f"activation_{name}",) if self.rules.get(a))]
                rules = ", ".join(f"{one}: []" for one in alike)
                raise ValueError(
                    f"{name!r} of size {size} does not divide over {by} = {ways} devices; choose "
                    f"a degree that divides {size}, or replicate it: "
                    f"logical_axis_rules='{{{rules}}}'"
                )
        return PartitionSpec(*(part or None for part in parts))

    def sharding(self, axes: Axes, shape: Sequence[int]) -> NamedSharding:
        """`spec(axes, shape)` on this mesh; raises the same errors."""
        return NamedSharding(self.mesh, self.spec(axes, shape))

    def like(
        self, sharding: NamedSharding, shape: Sequence[int], *, over_data: bool = False
    ) -> NamedSharding:
        """Where an array lies that belongs to another one.

        Args:
            sharding: Of that one, which has the same dims, or larger ones where this has 1.
            shape: Of this one.
            over_data: Split the largest dim that divides over the data axis too, if there is one.
        """
        given = (*sharding.spec, *(None for _ in range(len(shape) - len(sharding.spec))))
        parts = [
            () if part is None or size == 1 else (part,) if isinstance(part, str) else tuple(part)
            for part, size in zip(given, shape, strict=True)
        ]
        used = {axis for part in parts for axis in part}
        if over_data and self.mesh.shape.get(DATA, 1) > 1 and DATA not in used:
            for dim in sorted(range(len(shape)), key=lambda dim: -shape[dim]):
                if shape[dim] % self._ways((*parts[dim], DATA)) == 0:
                    parts[dim] = (*parts[dim], DATA)
                    break
        return NamedSharding(self.mesh, PartitionSpec(*(part or None for part in parts)))

    def ways(self, name: str) -> int:
        """Into how many parts the logical axis `name` is split.

        Raises:
            ValueError: The axis has no rule.
        """
        return self._ways(self.mesh_axes(name))

    def mesh_axes(self, name: str | None) -> MeshAxes:
        """The mesh axes that split the logical axis `name`; raises as `ways`."""
        if name is None:
            return ()
        if name not in self.rules:
            raise ValueError(
                f"logical_axis_rules has no rule for {name!r}; it has {', '.join(self.rules)}"
            )
        return tuple(axis for axis in self.rules[name] if self.mesh.shape[axis] > 1)

    def _ways(self, part: MeshAxes) -> int:
        return math.prod(self.mesh.shape[axis] for axis in part)


def with_ways(rules: Mapping[str, MeshAxes]) -> dict[str, MeshAxes]:
    """The rules, and those of what is on its way."""
    return {**rules, **{name: rules[same] for name, same in _ON_THE_WAY.items() if same in rules}}


@contextlib.contextmanager
def use_layout(layout: Layout) -> Generator[None]:
    """Makes `layout` the one that `constrain` follows inside the block.

    The rules are no part of jit's cache key: build jitted functions inside the block.
    """
    with use_layout_in_jit(layout), jax.set_mesh(layout.mesh):
        yield


@contextlib.contextmanager
def use_layout_in_jit(layout: Layout) -> Generator[None]:
    """`use_layout` for a part of a program: in a jit a mesh cannot be set any more."""
    token = _current.set(layout)
    try:
        yield
    finally:
        _current.reset(token)


def current_layout() -> Layout | None:
    """The layout of the innermost `use_layout`, None outside of one."""
    return _current.get()


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Pins the sharding of an activation; the identity outside `use_layout`.

    Raises:
        ValueError: As `Layout.spec`.
    """
    layout = _current.get()
    if layout is None:
        return x
    sharding = layout.sharding(axes, x.shape)
    if layout.log is not None:
        return layout.log.activation(x, axes, sharding)
    return jax.lax.with_sharding_constraint(x, sharding)


def exchange(x: jax.Array, before: Axes, after: Axes) -> jax.Array:
    """`x` as `after` has it, computed as `before` has it; raises as `constrain`.

    Where the two differ, devices pass parts of it on to each other.
    """
    return constrain(constrain(x, *before), *after)

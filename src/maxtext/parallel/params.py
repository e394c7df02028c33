"""Weight trees before any array exists: shape, logical axes, init and type of each leaf.

Everything else is derived from such a spec tree: shardings, restore targets, weights, counts.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Any, cast, dataclass_transform

import jax

from maxtext.parallel.layout import Axes, Layout
from maxtext.types import DType, Initializer, PRNGKeyArray, Weight


@dataclasses.dataclass(frozen=True)
class Param:
    """One weight that does not exist yet, or several equal ones stacked; a leaf to JAX.

    Attributes:
        shape: Of all of it.
        axes: The logical axis of each dim.
        init: Draws it.
        dtype: Its type.
        num_in: Where it is a matrix, how many of its own dims, the first ones, are summed over
            when it is applied; 0: a norm, a bias.
        num_stacked: Leading dims that count equal weights, such as the layers.
    """

    shape: tuple[int, ...]
    axes: Axes
    init: Initializer
    dtype: DType
    num_in: int = 0
    num_stacked: int = 0

    def __post_init__(self) -> None:
        assert len(self.shape) == len(self.axes), f"{self.shape} and {self.axes} differ in rank"

    @property
    def in_dims(self) -> tuple[int, ...]:
        """Dims that are summed over when the matrix is applied."""
        return tuple(range(self.num_stacked, self.num_stacked + self.num_in))

    @property
    def out_dims(self) -> tuple[int, ...]:
        """The other dims of the matrix, or all dims of a vector."""
        return tuple(range(self.num_stacked + self.num_in, len(self.shape)))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def param(
    shape: tuple[int, ...], axes: Axes, init: Initializer, dtype: DType, *, num_in: int = 0
) -> Weight:
    """Declares a weight; typed as the array that `initialize` will put there."""
    return cast(Weight, Param(shape, axes, init, dtype, num_in))


@dataclass_transform(frozen_default=True, kw_only_default=True)
def pytree[T](cls: type[T]) -> type[T]:
    """Makes a frozen, keyword-only dataclass that JAX can traverse.

    JAX rebuilds it without its constructor, which tests hold to the declared types: JAX puts
    whatever it likes into a tree, marks of its own in the place of None too.
    """
    made = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    names = tuple(field.name for field in dataclasses.fields(cast(Any, made)))
    keys = tuple(map(jax.tree_util.GetAttrKey, names))

    def flatten(tree: Any) -> tuple[tuple[Any, ...], None]:
        return tuple(getattr(tree, name) for name in names), None

    def flatten_with_keys(tree: Any) -> tuple[tuple[Any, ...], None]:
        return tuple(zip(keys, flatten(tree)[0], strict=True)), None

    def unflatten(_: None, children: Iterable[Any]) -> T:
        tree = object.__new__(made)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(tree, name, child)
        return tree

    jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, flatten)
    return made


def path_name(path: tuple[Any, ...]) -> str:
    """A leaf's name as users read it, such as `decoder/layers/mlp/wi_0/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: Any) -> dict[str, Any]:
    """Every leaf of a tree of specs, shardings or arrays under its name."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {path_name(path): leaf for path, leaf in leaves}


def map_params[T](fn: Callable[[str, Param], Any], specs: T) -> T:
    """Maps `fn(name, spec)` over every `Param` of a spec tree."""
    return jax.tree_util.tree_map_with_path(lambda path, one: fn(path_name(path), one), specs)


def select[T](tree: T, mask: Any) -> T:
    """The tree with None, which is no leaf, in the place of all whose mask is False."""

    def one(leaf: Any, keep: Any) -> Any:
        return leaf if keep else None

    return jax.tree.map(one, tree, mask, is_leaf=lambda leaf: leaf is None)


def merge[T](first: T, second: T) -> T:
    """The leaves of `first`, and where it has None those of `second`."""

    def one(leaf: Any, other: Any) -> Any:
        return other if leaf is None else leaf

    return jax.tree.map(one, first, second, is_leaf=lambda leaf: leaf is None)


def count_params(specs: Any) -> int:
    """Number of weights."""
    return sum(one.size for one in named_leaves(specs).values())


def stack[T](specs: T, size: int, axis: str) -> T:
    """Adds a leading dimension to every spec; each slice gets its own random key."""

    def stacked(_: str, one: Param) -> Param:
        def init(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DType) -> jax.Array:
            return jax.vmap(lambda k: one.init(k, shape[1:], dtype))(jax.random.split(key, size))

        return dataclasses.replace(
            one,
            shape=(size, *one.shape),
            axes=(axis, *one.axes),
            init=init,
            num_stacked=one.num_stacked + 1,
        )

    return map_params(stacked, specs)


def shardings[T](specs: T, layout: Layout) -> T:
    """A tree of shardings, for `jit`, Orbax and `device_put` alike.

    Raises:
        ValueError: Weights cannot be laid out so; each reason once, with their names.
    """
    problems: dict[str, list[str]] = {}

    def one(name: str, spec: Param) -> Any:
        try:
            return layout.sharding(spec.axes, spec.shape)
        except ValueError as error:
            problems.setdefault(str(error), []).append(name)
            return None

    tree = map_params(one, specs)
    if problems:
        lines = [f"{_listed(names)}: {reason}" for reason, names in problems.items()]
        raise ValueError("\n".join(lines))
    return tree


def _listed(names: list[str]) -> str:
    """The names, or the first two where there are more."""
    rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + rest


def abstract[T](specs: T, layout: Layout) -> T:
    """The tree that a checkpoint is restored into; no memory is used. Raises as `shardings`."""
    shapes = map_params(lambda _, one: jax.ShapeDtypeStruct(one.shape, one.dtype), specs)
    return jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
        shapes,
        shardings(specs, layout),
    )


def initialize[T](specs: T, key: PRNGKeyArray) -> T:
    """Draws every weight; jit it with `out_shardings=shardings(...)`.

    A weight's numbers depend on the key and its name alone: not on the mesh, and not on which
    other weights there are. They are drawn in float32 and rounded to the weight's type, so that
    a run in another type starts from the same model.
    """

    def one(name: str, spec: Param) -> jax.Array:
        tag = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
        drawn = spec.init(jax.random.fold_in(key, tag), spec.shape, "float32")
        return drawn.astype(spec.dtype)

    return map_params(one, specs)

"""Rows of tokens over the devices that split them."""

import dataclasses
import math

import jax
import numpy as np

from maxtext.parallel.layout import Layout

_LENGTHS = ("activation_length", "activation_norm_length", "attn_activation_length")


@dataclasses.dataclass(frozen=True)
class RowSplit:
    """Which tokens of a row each device holds.

    Attributes:
        axes: The mesh axes that split rows, the major one first.
        ways: Devices that a row is split over.
        balanced: Cut a row into twice as many chunks and give device i the chunks i and
            2 ways - 1 - i. Each device then has the same causal work; else the last has the most.
    """

    axes: tuple[str, ...] = ()
    ways: int = 1
    balanced: bool = False

    @property
    def held(self) -> np.ndarray:
        """The chunks of each device, [ways, chunks]."""
        first = np.arange(self.ways)[:, None]
        if not self.balanced:
            return first
        return np.concatenate([first, 2 * self.ways - 1 - first], axis=1)

    def places(self, length: int) -> np.ndarray:
        """The place in its row of each token, in the order that devices hold them."""
        return np.arange(length, dtype=np.int32).reshape(self.held.size, -1)[self._order].ravel()

    def reordered(self, x: jax.Array) -> jax.Array:
        """Arrays [rows, length, ...], the tokens of a row in the order that devices hold them."""
        return self._by_chunk(x, self._order)

    def restored(self, x: jax.Array) -> jax.Array:
        """The inverse of `reordered`."""
        return self._by_chunk(x, np.argsort(self._order))

    @property
    def _order(self) -> np.ndarray:
        return self.held.reshape(-1)

    def _by_chunk(self, x: jax.Array, order: np.ndarray) -> jax.Array:
        if (order == np.arange(order.size)).all():
            return x
        chunks = x.reshape(x.shape[0], order.size, -1, *x.shape[2:])
        return chunks[:, order].reshape(x.shape)


WHOLE = RowSplit()


def row_split(layout: Layout | None) -> RowSplit:
    """How `layout` splits rows where attention runs."""
    if layout is None or (ways := layout.ways("attn_activation_length")) == 1:
        return WHOLE
    axes = layout.mesh_axes("attn_activation_length")
    return RowSplit(axes=axes, ways=ways, balanced=layout.balanced_rows)


def check_length(layout: Layout, length: int) -> None:
    """Holds the length of a row against the mesh.

    Raises:
        ValueError: Rows do not divide; names the key and lengths that do.
    """
    split = row_split(layout)
    unit = math.lcm(split.held.size, *map(layout.ways, _LENGTHS))
    if length % unit == 0:
        return
    axes = dict.fromkeys(axis for name in _LENGTHS for axis in layout.mesh_axes(name))
    over = " x ".join(f"{axis} {layout.mesh.shape[axis]}" for axis in axes)
    lower, higher = length // unit * unit, -(-length // unit) * unit
    raise ValueError(
        f"max_target_length={length}: {over} takes rows of a multiple of {unit} tokens; use "
        f"{f'{lower} or {higher}' if lower else higher}"
    )

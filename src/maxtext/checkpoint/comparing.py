"""In what two steps differ: `python -m maxtext.checkpoint diff`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorstore as ts

from maxtext.checkpoint.arrays import array_context, open_array, places, read_piece
from maxtext.checkpoint.folders import WEIGHTS
from maxtext.checkpoint.inspecting import find_step, item_of, leaves

_PIECE = 2**22


def differences(first: str, second: str, *, params_only: bool) -> Iterator[str]:
    """A line for each difference between the steps that two paths mean; none if they are equal.

    Args:
        first: A path as `find_step` takes it.
        second: Another.
        params_only: Compare weights alone: not the config, the optimizer, the place in the data.

    Raises:
        CheckpointError: There is no step, or it cannot be read.
    """
    ours, theirs = find_step(first), find_step(second)
    if not params_only:
        yield from _configs(item_of(ours, "config"), item_of(theirs, "config"))
        if item_of(ours, "data") != item_of(theirs, "data"):
            yield "data: another place in the data"
    there = [
        {
            name: f"{leaf['dtype']}[{','.join(map(str, leaf['shape']))}]"
            for name, leaf in leaves(step).items()
            if not params_only or name.startswith(WEIGHTS)
        }
        for step in (ours, theirs)
    ]
    context = array_context()
    for name in dict.fromkeys([*there[0], *there[1]]):
        a, b = (one.get(name, "missing") for one in there)
        if a != b:
            yield f"{name}: {a} | {b}"
        if a.partition("[")[2] == b.partition("[")[2]:
            yield from _values(name, [open_array(step, name, context) for step in (ours, theirs)])


def _configs(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*ours, *theirs]):
        texts = [repr(one[name]) if name in one else "missing" for one in (ours, theirs)]
        if texts[0] != texts[1]:
            yield f"config {name}: {texts[0]} | {texts[1]}"


def _values(name: str, stores: list[ts.TensorStore]) -> Iterator[str]:
    """The difference of two arrays of one shape, read piece by piece."""
    largest, different, total = 0.0, 0, 0
    for place in places(stores[0]):
        pair = [_flat(store, place, name) for store in stores]
        total += pair[0].size
        for start in range(0, pair[0].size, _PIECE):
            a, b = (one[start : start + _PIECE] for one in pair)
            if a.dtype != b.dtype:
                a, b = a.astype(np.float64), b.astype(np.float64)
            same = a.view(np.uint8).reshape(a.size, -1) == b.view(np.uint8).reshape(a.size, -1)
            changed = ~same.all(axis=1)
            if changed.any():
                gap = np.abs(a[changed].astype(np.float64) - b[changed].astype(np.float64))
                largest = float(np.maximum(largest, np.max(gap)))
                different += int(changed.sum())
    if different:
        yield f"{name}: {different} of {total} elements differ, by {largest:.6g} at most"


def _flat(store: ts.TensorStore, place: tuple[slice, ...], name: str) -> np.ndarray:
    return np.ascontiguousarray(read_piece(store, place, name=name)).reshape(-1)

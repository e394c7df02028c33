"""The arrays of a step as TensorStore opens them: without JAX, and a piece at a time."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorstore as ts

from maxtext.checkpoint.errors import DamagedCheckpoint, code

type Place = tuple[slice, ...]

_WHOLE_BYTES = 2**30


def array_spec(folder: Path, name: str) -> dict[str, Any]:
    """Where an array of a step lies: Orbax joins the parts of its name with dots."""
    kvstore = {
        "driver": "ocdbt",
        "base": {"driver": "file", "path": f"{folder / 'state'}/"},
        "path": f"{name.replace('/', '.')}/",
        "cache_pool": "cache_pool#ocdbt",
    }
    return {"driver": "zarr3", "kvstore": kvstore}


def array_context() -> ts.Context:
    """Bounds the cache that is shared by what is opened with it."""
    return ts.Context({"cache_pool#ocdbt": {"total_bytes_limit": 100_000_000}})


def open_array(folder: Path, name: str, context: ts.Context) -> ts.TensorStore:
    """An array of a step, to be read.

    Raises:
        DamagedCheckpoint: It is missing or its description cannot be read.
    """
    try:
        return ts.open(array_spec(folder, name), read=True, context=context).result()
    except ValueError as error:
        raise DamagedCheckpoint(f"{name} in {folder} cannot be read: {code(error)}") from error


def create_array(
    folder: Path,
    name: str,
    *,
    shape: tuple[int, ...],
    dtype: str,
    chunk: tuple[int, ...],
    context: ts.Context,
) -> ts.TensorStore:
    """A new array of a step, to be written.

    Raises:
        ValueError: It cannot be written, in TensorStore's words.
    """
    spec = array_spec(folder, name)
    spec["metadata"] = {
        "shape": shape,
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    # As Orbax does: a chunk that is not there is damage, not zeros.
    spec["store_data_equal_to_fill_value"] = True
    return ts.open(spec, create=True, context=context).result()


def read_piece(store: ts.TensorStore, place: Place, *, name: str) -> Any:
    """A part of an array, as numpy's.

    Raises:
        DamagedCheckpoint: It cannot be read.
    """
    try:
        return store[place].read().result()
    except ValueError as error:
        raise DamagedCheckpoint(f"{name} cannot be read: {code(error)}") from error


def places(store: ts.TensorStore) -> Iterator[Place]:
    """Parts that make up an array: all of it, or its chunks where it is larger than 1 GiB."""
    shape = tuple(store.shape)
    chunk = shape
    if num_bytes(store) > _WHOLE_BYTES:
        written = store.chunk_layout.read_chunk.shape or shape
        chunk = tuple(step or size for step, size in zip(written, shape, strict=True))
    yield from chunks(shape, chunk)


def num_bytes(store: ts.TensorStore) -> int:
    """Bytes of an array."""
    return math.prod(store.shape) * store.dtype.numpy_dtype.itemsize


def chunks(shape: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[Place]:
    """The parts of `shape` in a regular grid of `chunk`."""
    starts = [range(0, size, max(1, step)) for size, step in zip(shape, chunk, strict=True)]
    for corner in itertools.product(*starts):
        yield tuple(
            slice(start, min(start + step, size))
            for start, step, size in zip(corner, chunk, shape, strict=True)
        )


def chunk_shape(shape: tuple[int, ...], itemsize: int, *, most_bytes: int) -> tuple[int, ...]:
    """The largest chunk of at most `most_bytes` that halves, thirds... of the dims lead to.

    Each cut is by the smallest divisor of the dim that is the largest by then, so that chunks end
    where the shards of a mesh end.
    """
    chunk = list(shape)
    while math.prod(chunk) * itemsize > most_bytes and max(chunk, default=1) > 1:
        dim = max(range(len(chunk)), key=lambda dim: chunk[dim])
        chunk[dim] //= next(n for n in range(2, chunk[dim] + 1) if chunk[dim] % n == 0)
    return tuple(chunk)

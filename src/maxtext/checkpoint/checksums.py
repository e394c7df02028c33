"""Numbers that tell whether an array came back bit for bit, on whatever mesh."""

import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils

_GOLDEN = 0x9E3779B9
_PIECE_SIZE = 2**20


def _bits(x: jax.Array) -> jax.Array:
    """The bits of each element as uint32."""
    assert x.dtype.itemsize <= 4, f"{x.dtype} is wider than 32 bits"
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    return lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)


def _piece_sum(x: jax.Array, starts: jax.Array, strides: jax.Array) -> jax.Array:
    """Sum of the hashes of an array whose first element lies at `starts` in the whole one."""
    place = jnp.zeros(x.shape, jnp.uint32)
    for dim in range(x.ndim):
        along = lax.broadcasted_iota(jnp.uint32, x.shape, dim)
        place += (along + starts[dim]) * strides[dim]
    h = _bits(x) + place * np.uint32(_GOLDEN)
    h = (h ^ (h >> 16)) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * np.uint32(0xC2B2AE35)
    return jnp.sum(h ^ (h >> 16), dtype=jnp.uint32)


def _rows(shape: tuple[int, ...]) -> int:
    """Most rows in an equal piece of about a million elements; at least one."""
    most = max(1, _PIECE_SIZE // max(1, math.prod(shape[1:])))
    return next(rows for rows in range(min(most, shape[0]), 0, -1) if shape[0] % rows == 0)


@jax.jit
def _shard_sum(x: jax.Array, starts: jax.Array, strides: jax.Array) -> jax.Array:
    """`_piece_sum`, piece by piece: XLA on a CPU would write out all hashes before it sums."""
    if x.size <= _PIECE_SIZE or x.ndim == 0:
        return _piece_sum(x, starts, strides)
    rows = _rows(x.shape)

    def add(piece: jax.Array, total: jax.Array) -> jax.Array:
        row = piece * rows
        part = lax.dynamic_slice_in_dim(x, row, rows)
        return total + _piece_sum(part, starts.at[0].add(row.astype(jnp.uint32)), strides)

    return lax.fori_loop(0, x.shape[0] // rows, add, jnp.uint32(0))


def _strides(shape: tuple[int, ...]) -> np.ndarray:
    """Elements from one index of each dim to the next, wrapping around."""
    return np.array([math.prod(shape[dim + 1 :]) % 2**32 for dim in range(len(shape))], np.uint32)


def _sums_here(x: jax.Array) -> list[jax.Array]:
    """The sums of this process's shards, each part of the array once."""
    return [
        _shard_sum(
            shard.data,
            np.array([part.start or 0 for part in shard.index], np.uint32),
            _strides(x.shape),
        )
        for shard in x.addressable_shards
        if shard.replica_id == 0
    ]


def array_checksums(arrays: Mapping[str, jax.Array]) -> dict[str, int]:
    """A uint32 for each array: the same on any mesh and any number of processes.

    The sum over the elements of a hash of bits and place, wrapping around, hence exact in any
    order. The hash is a bijection of the bits, so one changed element always shows; a plain
    weighted sum would miss an even number of flipped signs.

    Source: the finalizer of MurmurHash3 (Appleby, public domain).
    """
    # A shard lies on one device, whatever mesh the caller has in context.
    with jax.set_mesh(None):
        shards = jax.device_get([_sums_here(x) for x in arrays.values()])
    sums = np.array([sum(map(int, one)) % 2**32 for one in shards], np.uint32)
    if jax.process_count() > 1:
        sums = multihost_utils.process_allgather(sums).sum(axis=0, dtype=np.uint32)
    return dict(zip(arrays, sums.tolist(), strict=True))


def part_checksum(part: np.ndarray, place: tuple[slice, ...], shape: tuple[int, ...]) -> int:
    """What a part of an array adds to the checksum of the whole, modulo 2**32.

    Args:
        part: A block of the array.
        place: Where it lies.
        shape: Of the whole array.
    """
    starts = np.array([one.start for one in place], np.uint32)
    return int(_shard_sum(jnp.asarray(part), starts, _strides(shape)))


def sealed_values(
    leaves: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON values of a step, with the checksums of all that it holds.

    Args:
        leaves: `dtype`, `shape` and `checksum` of each array.
        values: `data`, the place of each process, `config`, flat, and what else there is.
    """
    plain: dict[str, Any] = json.loads(json.dumps(values))
    of_values = {name: json_checksum(value) for name, value in plain.items()}
    plain["checksums"] = {
        "leaves": leaves,
        "values": of_values,
        "self": json_checksum([leaves, of_values]),
    }
    return plain


def json_checksum(value: Any) -> int:
    """The CRC-32 of a JSON value, whatever the order of its keys."""
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())

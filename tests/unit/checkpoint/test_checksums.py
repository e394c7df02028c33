import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from maxtext.checkpoint import checksums
from maxtext.checkpoint.checksums import array_checksums, json_checksum

DTYPES = ["float32", "bfloat16", "float16", "int32", "int8", "bool"]


def checksum(x: np.ndarray | jax.Array) -> int:
    return array_checksums({"x": jnp.asarray(x)})["x"]


def numbers(dtype: str) -> np.ndarray:
    return np.asarray(jnp.asarray(np.arange(-60, 60).reshape(8, 15) % 7 - 3).astype(dtype))


def reference(x: np.ndarray) -> int:
    """The same sum in Python's integers."""
    width = x.dtype.itemsize
    total = 0
    for place, bits in enumerate(x.reshape(-1).view(f"uint{8 * width}").tolist()):
        h = (bits + place * 0x9E3779B9) % 2**32
        h = (h ^ (h >> 16)) * 0x85EBCA6B % 2**32
        h = (h ^ (h >> 13)) * 0xC2B2AE35 % 2**32
        total += h ^ (h >> 16)
    return total % 2**32


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_checksum_is_the_documented_sum(dtype: str) -> None:
    assert checksum(numbers(dtype)) == reference(numbers(dtype))


def test_a_scalar_has_a_checksum() -> None:
    assert checksum(jnp.float32(3)) == reference(np.float32([3]))
    assert checksum(jnp.int32(3)) != checksum(jnp.int32(4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_checksum_does_not_depend_on_the_mesh(dtype: str) -> None:
    x = numbers(dtype)
    mesh = jax.make_mesh((4, 2), ("a", "b"), (AxisType.Auto,) * 2)
    for spec in [PartitionSpec("a"), PartitionSpec(("b", "a")), PartitionSpec()]:
        assert checksum(jax.device_put(x, NamedSharding(mesh, spec))) == checksum(x)


@pytest.mark.parametrize("bit", [0, 7, 22, 31])
@pytest.mark.parametrize("places", [[0], [119], [3, 4], list(range(120))])
def test_flipped_bits_change_it(places: list[int], bit: int) -> None:
    flipped = numbers("float32").copy()
    flipped.reshape(-1).view(np.uint32)[places] ^= np.uint32(1 << bit)
    assert checksum(flipped) != checksum(numbers("float32"))


def test_zeroed_moved_and_reshaped_data_change_it() -> None:
    x = np.arange(1, 121, dtype=np.float32).reshape(8, 15)
    zeroed, swapped = x.copy(), x.copy()
    zeroed[5] = 0
    swapped[[1, 2]] = swapped[[2, 1]]
    sums = {checksum(one) for one in (x, zeroed, swapped, np.roll(x, 1), x[::-1], np.zeros_like(x))}
    assert len(sums) == 6


@pytest.mark.parametrize("shape", [(2048, 1031), (3, 1024, 1031), (2**21,)])
def test_a_large_array_is_summed_in_pieces(shape: tuple[int, ...]) -> None:
    x = jax.random.normal(jax.random.key(0), shape)
    strides = np.array([math.prod(shape[dim + 1 :]) for dim in range(len(shape))], np.uint32)
    starts = np.zeros(len(shape), np.uint32)
    assert checksum(x) == int(jax.jit(checksums._piece_sum)(x, starts, strides))
    memory = checksums._shard_sum.lower(x, starts, strides).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 20e6


def test_a_json_checksum_knows_values_and_not_the_order_of_keys() -> None:
    assert json_checksum({"a": 1, "b": [2]}) == json_checksum({"b": [2], "a": 1})
    assert json_checksum({"a": 1, "b": [2]}) != json_checksum({"a": 1, "b": [3]})

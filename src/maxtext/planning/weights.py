"""What weights take on a device, by group."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax.sharding import NamedSharding

from maxtext.parallel.layout import Layout
from maxtext.parallel.params import Param, named_leaves, shardings

# The names in a weight's path that say what it belongs to, and what the table calls that.
_GROUPS = {
    "embedding": "embedding",
    "logits_dense": "head",
    "query": "attention: query, out",
    "out": "attention: query, out",
    "key": "attention: key, value",
    "value": "attention: key, value",
    "qkv_proj": "attention: query, key, value",
    "mlp": "mlp",
}
_REST = "norms"


@dataclasses.dataclass(frozen=True)
class WeightGroup:
    """Weights of one purpose.

    Attributes:
        name: What they are for.
        num_params: Numbers in them.
        num_bytes: Bytes of one copy.
        bytes_per_device: Bytes on a device.
        copies: How often all devices together hold them.
    """

    name: str
    num_params: int
    num_bytes: int
    bytes_per_device: int
    copies: float


def weight_groups(specs: Any, layout: Layout, *, dtype: Any = None) -> tuple[WeightGroup, ...]:
    """The groups in the order of the weights.

    Args:
        specs: The weights, declared.
        layout: Where they lie.
        dtype: Their type; None: what is declared.

    Raises:
        ValueError: A weight cannot be laid out so.
    """
    groups: dict[str, list[tuple[int, int, int]]] = {}
    for name, spec, sharding in _placed(specs, layout):
        size = jnp.dtype(dtype or spec.dtype).itemsize
        own = spec.size, spec.size * size, math.prod(sharding.shard_shape(spec.shape)) * size
        groups.setdefault(_group(name), []).append(own)
    made: list[WeightGroup] = []
    for name, sizes in groups.items():
        count, whole, each = (sum(column) for column in zip(*sizes, strict=True))
        made.append(WeightGroup(name, count, whole, each, each * layout.mesh.size / whole))
    return tuple(made)


def _placed(specs: Any, layout: Layout) -> Iterator[tuple[str, Param, NamedSharding]]:
    places = named_leaves(shardings(specs, layout))
    for name, spec in named_leaves(specs).items():
        yield name, spec, places[name]


def _group(name: str) -> str:
    return next((_GROUPS[part] for part in name.split("/") if part in _GROUPS), _REST)

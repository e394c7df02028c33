"""The cache of a model: its sizes, and the arrays."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from maxtext.config.errors import ConfigError, Problem
from maxtext.config.schema_serving import DecodeConfig
from maxtext.decoding.scheduler import Limits
from maxtext.layers.paged import CACHE_AXES, cached_heads
from maxtext.models.decoder import Architecture
from maxtext.ops.paged_attention import Cache, Shape
from maxtext.parallel.layout import Layout
from maxtext.types import DType


def make_limits(
    decode: DecodeConfig,
    model: Architecture,
    layout: Layout,
    *,
    length: int,
    cache_dtype: DType,
    free_bytes: int,
) -> Limits:
    """What each rank can hold.

    Args:
        decode: Its keys.
        model: The model.
        layout: With the rules of serving.
        length: Tokens of a sequence at most.
        cache_dtype: Type of cached keys and values.
        free_bytes: What is left once weights are loaded, summed over the devices of one rank.

    Raises:
        ValueError: The cache does not fit into memory, or holds not even one sequence.
    """
    ranks = layout.ways("pages")
    sequences = -(-decode.max_num_seqs // ranks)
    table = -(-length // decode.page_size)
    limits = Limits(
        num_ranks=ranks,
        max_num_seqs=sequences,
        max_num_batched_tokens=max(decode.max_num_batched_tokens, sequences),
        num_pages=1,
        page_size=decode.page_size,
        max_length=length,
        prefix_caching=decode.enable_prefix_caching,
    )
    per_page = cache_bytes(model, layout, limits, cache_dtype)
    fit = int(free_bytes * decode.kv_cache_memory_fraction) // per_page
    wanted = sequences * table if decode.num_pages < 0 else decode.num_pages // ranks
    if decode.num_pages > 0 and wanted > fit:
        raise _num_pages_error(
            decode,
            f"{fit * ranks} pages are what fits into "
            f"kv_cache_memory_fraction={decode.kv_cache_memory_fraction} of the free memory",
        )
    if wanted < 1:
        message = f"each of {ranks} devices that split requests needs one"
        raise _num_pages_error(decode, message)
    if fit < 1:
        raise ValueError(
            "no page of the cache fits into memory; use a smaller page_size, or int8: "
            "kv_cache_dtype=int8"
        )
    return dataclasses.replace(limits, num_pages=min(wanted, fit))


def _num_pages_error(decode: DecodeConfig, message: str) -> ConfigError:
    value, hint = str(decode.num_pages), "num_pages=-1 makes as many as there is use and room for"
    return ConfigError([Problem("num_pages", message, value=value, hint=hint)])


def cache_bytes(model: Architecture, layout: Layout, limits: Limits, dtype: DType) -> int:
    """Bytes of the cache of one rank, of all layers."""
    layers = sum(group.size for group in model.groups)
    return _shape(model, layout, limits).num_bytes(dtype) * layers // limits.num_ranks


def _shape(model: Architecture, layout: Layout, limits: Limits) -> Shape:
    """Sizes of the cache of one layer, of all ranks."""
    config = model.config
    return Shape(
        pages=limits.num_pages * limits.num_ranks,
        page_size=limits.page_size,
        kv_heads=cached_heads(layout, config.num_kv_heads),
        head_dim=config.head_dim,
    )


def abstract_cache(
    model: Architecture, layout: Layout, limits: Limits, dtype: DType
) -> list[Cache]:
    """A cache for each layer, as shapes that say where they lie."""
    shape = _shape(model, layout, limits).values

    def empty() -> Cache:
        quantized = jnp.dtype(dtype) == jnp.int8
        scales = jnp.zeros(shape[:-1], jnp.float32) if quantized else None
        return Cache(values=jnp.zeros(shape, dtype), scales=scales)

    def placed(one: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return one.update(sharding=layout.sharding(CACHE_AXES[: one.ndim], one.shape))

    cache = jax.tree.map(placed, jax.eval_shape(empty))
    return [cache for group in model.groups for _ in range(group.size)]


def empty_cache(model: Architecture, layout: Layout, limits: Limits, dtype: DType) -> list[Cache]:
    """A cache for each layer."""
    made: dict[Any, Callable[[], jax.Array]] = {}

    def zeros(one: Any) -> jax.Array:
        if one not in made:
            fill = functools.partial(jnp.zeros, one.shape, one.dtype)
            made[one] = jax.jit(fill, out_shardings=one.sharding)
        return made[one]()

    return jax.tree.map(zeros, abstract_cache(model, layout, limits, dtype))

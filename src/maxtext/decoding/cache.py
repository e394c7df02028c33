"""The cache of a model: its sizes, and the arrays."""

import jax
import jax.numpy as jnp

from maxtext.decoding.scheduler import Limits
from maxtext.layers.paged import CACHE_AXES, cached_heads
from maxtext.models.decoder import Architecture
from maxtext.ops.paged_attention import Cache, Shape
from maxtext.parallel.layout import Layout
from maxtext.types import DType


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


def empty_cache(model: Architecture, layout: Layout, limits: Limits, dtype: DType) -> list[Cache]:
    """A cache for each layer."""
    shape = _shape(model, layout, limits).values
    layers = sum(group.size for group in model.groups)

    def one(shape: tuple[int, ...], dtype: DType) -> list[jax.Array]:
        sharding = layout.sharding(CACHE_AXES[: len(shape)], shape)
        zeros = jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=sharding)
        return [zeros() for _ in range(layers)]

    values = one(shape, dtype)
    quantized = jnp.dtype(dtype) == jnp.int8
    scales = one(shape[:-1], jnp.float32) if quantized else [None] * layers
    return [Cache(values=v, scales=s) for v, s in zip(values, scales, strict=True)]

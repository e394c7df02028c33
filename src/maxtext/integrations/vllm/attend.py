"""Attention to the cache as tpu-inference keeps it: an op for the attention port of serving."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from maxtext.ops.attention import AttentionPattern
from maxtext.ops.paged_attention import Cache, Ragged, paged_attention
from maxtext.types import Array, Float

# Widths of a head in the cache are multiples of this; this one is kept as it is.
_LANES, _NARROW = 128, 64


def attention_op() -> Callable[..., tuple[jax.Array, jax.Array]]:
    """The op for the devices at hand; takes what `paged_attention` takes."""
    return _kernel if jax.default_backend() == "tpu" else attention


def attention(
    q: Float[Array, "T H N"],
    k: Float[Array, "T K N"],
    v: Float[Array, "T K N"],
    cache: Float[Array, "pages page_size rows packing lanes"],
    ragged: Ragged,
    *,
    pattern: AttentionPattern,
) -> tuple[Float[Array, "T H N"], jax.Array]:
    """`paged_attention` with a cache in the layout of tpu-inference's kernels.

    Keys and values of a head lie next to each other there, as in ours, but heads and their widths
    are padded, and heads may be cut into rows of several numbers of one word.

    Source: tpu-inference 0.32.0, kernels/ragged_paged_attention/v3.
    """
    tokens, kv_heads, width = k.shape
    padded = _NARROW if width == _NARROW else -(-width // _LANES) * _LANES
    cached = math.prod(cache.shape[2:]) // (2 * padded)
    wider = [(0, 0), (0, cached - kv_heads), (0, padded - width)]
    grouped = q.reshape(tokens, kv_heads, -1, width)
    grouped = jnp.pad(grouped, [wider[0], wider[1], (0, 0), wider[2]])
    out, stored = paged_attention(
        grouped.reshape(tokens, -1, padded),
        jnp.pad(k, wider),
        jnp.pad(v, wider),
        Cache(values=cache, scales=None),
        ragged,
        pattern=pattern,
    )
    out = out.reshape(tokens, cached, -1, padded)[:, :kv_heads, :, :width]
    return out.reshape(q.shape), stored.values


def _kernel(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    cache: jax.Array,
    ragged: Ragged,
    *,
    pattern: AttentionPattern,
) -> tuple[jax.Array, jax.Array]:
    """The same by tpu-inference's Pallas kernel."""
    if q.shape[-1] == _NARROW:
        from tpu_inference.kernels.ragged_paged_attention.v3.kernel_hd64 import (  # pyright: ignore[reportMissingImports]
            ragged_paged_attention_hd64 as kernel,
        )
    else:
        from tpu_inference.kernels.ragged_paged_attention.v3.kernel import (  # pyright: ignore[reportMissingImports]
            ragged_paged_attention as kernel,
        )

    run = functools.partial(
        kernel,
        sm_scale=pattern.scale,
        sliding_window=pattern.window,
        soft_cap=pattern.soft_cap,
    )
    table = ragged.page_table.reshape(-1)
    return run(q, k, v, cache, ragged.lengths, table, ragged.starts, ragged.counts)

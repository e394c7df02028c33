"""The attention port of serving: keys and values lie in a paged cache."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from maxtext.ops.attention import AttentionPattern
from maxtext.ops.paged_attention import Ragged, paged_attention
from maxtext.parallel.layout import Layout, current_layout

CACHE_AXES = ("pages", None, "cache_heads", None, None)
_TOKENS = "attn_activation_length"


def cached_heads(layout: Layout, kv_heads: int) -> int:
    """Heads of the cache: each key and value head once for every device that needs its own."""
    ways = layout.ways("cache_heads")
    return kv_heads * (ways // math.gcd(ways, kv_heads))


@dataclasses.dataclass
class PagedAttend:
    """The port for one layer of one forward pass; `cache` becomes the cache after the call.

    Attributes:
        ragged: Of all ranks, the entries of each rank in a block.
        cache: Of the layer; arrays whose first and third dims are pages and heads.
        op: `paged_attention`, or one for a cache of another kind.
    """

    ragged: Ragged
    cache: Any
    op: Callable[..., tuple[jax.Array, Any]] = paged_attention

    def __call__(
        self, q: jax.Array, k: jax.Array, v: jax.Array, pattern: AttentionPattern
    ) -> jax.Array:
        """Attention of rows [1, T, ...], which hold the tokens of all ranks."""
        layout = current_layout()
        assert layout is not None, "the cache lies on a mesh: call within `use_layout`"
        copies = cached_heads(layout, k.shape[2]) // k.shape[2]
        k, v = (jnp.repeat(x, copies, axis=2) for x in (k, v))
        heads = layout.spec((_TOKENS, "cache_heads", None), q.shape[1:])
        cache = jax.tree.map(lambda x: layout.spec(CACHE_AXES[: x.ndim], x.shape), self.cache)
        ragged = jax.tree.map(
            lambda x: layout.spec((_TOKENS, *(None,) * (x.ndim - 1)), x.shape), self.ragged
        )

        def run(
            q: jax.Array, k: jax.Array, v: jax.Array, cache: Any, ragged: Ragged
        ) -> tuple[jax.Array, Any]:
            return self.op(q, k, v, cache, ragged, pattern=pattern)

        mapped = jax.shard_map(
            run,
            mesh=layout.mesh,
            in_specs=(heads, heads, heads, cache, ragged),
            out_specs=(heads, cache),
            check_vma=False,
        )
        out, self.cache = mapped(q[0], k[0], v[0], self.cache, self.ragged)
        return out[None]

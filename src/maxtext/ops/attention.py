"""Causal attention over whole sequences; grouped queries everywhere, MHA and MQA its ends.

Every function scales the scores by head_dim ** -0.5, once and here alone.
"""

import jax
import jax.numpy as jnp

from maxtext.types import Array, Float, Int

FLASH_BLOCK = 128


def dot_product_attention(
    q: Float[Array, "B L H N"],
    k: Float[Array, "B L K N"],
    v: Float[Array, "B L K N"],
    segments: Int[Array, "B L"],
    *,
    float32_qk_product: bool = False,
    float32_logits: bool = True,
) -> Float[Array, "B L H N"]:
    """Softmax attention to earlier tokens of the same segment, scores held whole.

    Args:
        float32_qk_product: Multiply queries and keys in float32 whatever their type.
        float32_logits: Take the softmax in float32.

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1; Ainslie et al. 2023,
        arXiv:2305.13245, for the groups.
    """
    batch, length, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    grouped = q.reshape(batch, length, kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5
    if float32_qk_product:
        grouped, k = grouped.astype(jnp.float32), k.astype(jnp.float32)
    scores = jnp.einsum("blkgn,bskn->bkgls", grouped, k)
    if float32_logits:
        scores = scores.astype(jnp.float32)
    causal = jnp.tril(jnp.ones((length, length), bool))
    seen = causal & (segments[:, :, None] == segments[:, None, :])
    scores = jnp.where(seen[:, None, None], scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bkgls,bskn->blkgn", weights, v).reshape(q.shape)


def splash_flash_attention(
    q: Float[Array, "B L H N"],
    k: Float[Array, "B L K N"],
    v: Float[Array, "B L K N"],
    segments: Int[Array, "B L"],
    *,
    interpret: bool = False,
) -> Float[Array, "B L H N"]:
    """`dot_product_attention` by JAX's splash attention kernel for TPU.

    Source: jax 0.11, experimental/pallas/ops/tpu/splash_attention.
    """
    # Imported here: it takes a quarter of a second, which only TPUs need to spend.
    from jax.experimental.pallas.ops.tpu import splash_attention

    length, heads, head_dim = q.shape[1:]
    block = next(size for size in (512, 256, FLASH_BLOCK) if length % size == 0)
    causal = splash_attention.CausalMask((length, length))
    kernel = splash_attention.make_splash_mha(
        mask=splash_attention.MultiHeadMask([causal] * heads),
        block_sizes=splash_attention.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_q_dq=block,
            block_kv_dq=block,
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    heads_first = [x.swapaxes(1, 2) for x in (q * head_dim**-0.5, k, v)]
    ids = splash_attention.SegmentIds(segments, segments)
    out: jax.Array = jax.vmap(kernel)(*heads_first, ids)  # pyright: ignore[reportAssignmentType]
    return out.swapaxes(1, 2)


def triton_flash_attention(
    q: Float[Array, "B L H N"],
    k: Float[Array, "B L K N"],
    v: Float[Array, "B L K N"],
    segments: Int[Array, "B L"],
    *,
    implementation: str = "triton",
) -> Float[Array, "B L H N"]:
    """`dot_product_attention` by tokamax's Triton kernel for GPU.

    Source: tokamax 0.0.17, dot_product_attention.
    """
    # Imported here: an extra, which only GPUs need.
    import tokamax  # pyright: ignore[reportMissingImports]

    same_segment = segments[:, None, :, None] == segments[:, None, None, :]
    return tokamax.dot_product_attention(
        q, k, v, mask=same_segment, is_causal=True, implementation=implementation
    )

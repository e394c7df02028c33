"""`dot_product_attention` by kernels that others keep."""

import jax
from jax.ad_checkpoint import checkpoint_name

from maxtext.ops.attention import SAVED_NAME, AttentionPattern
from maxtext.types import Array, Float, Int

# What the length of a row must be a multiple of.
FLASH_BLOCK = 128


def splash_flash_attention(
    q: Float[Array, "B L H N"],
    k: Float[Array, "B L K N"],
    v: Float[Array, "B L K N"],
    segments: Int[Array, "B L"],
    *,
    pattern: AttentionPattern,
    interpret: bool = False,
) -> Float[Array, "B L H N"]:
    """Attention by JAX's splash attention kernel for TPU.

    Source: jax 0.11, experimental/pallas/ops/tpu/splash_attention.
    """
    # Imported here: it takes a quarter of a second, which only TPUs need to spend.
    from jax.experimental.pallas.ops.tpu import splash_attention

    length, heads = q.shape[1:3]
    block = next(size for size in (512, 256, FLASH_BLOCK) if length % size == 0)
    square = (length, length)
    if pattern.window is None:
        mask = splash_attention.CausalMask(square)
    else:
        mask = splash_attention.LocalMask(square, (pattern.window - 1, 0), offset=0)
    kernel = splash_attention.make_splash_mha(
        mask=splash_attention.MultiHeadMask([mask] * heads),
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
        attn_logits_soft_cap=pattern.soft_cap,
        residual_checkpoint_name=SAVED_NAME,
        interpret=interpret,
    )
    # The kernel scales nothing.
    heads_first = [x.swapaxes(1, 2) for x in (q * pattern.scale, k, v)]
    ids = splash_attention.SegmentIds(segments, segments)
    out: jax.Array = jax.vmap(kernel)(*heads_first, ids)  # pyright: ignore[reportAssignmentType]
    return checkpoint_name(out.swapaxes(1, 2), SAVED_NAME)


def triton_flash_attention(
    q: Float[Array, "B L H N"],
    k: Float[Array, "B L K N"],
    v: Float[Array, "B L K N"],
    segments: Int[Array, "B L"],
    *,
    pattern: AttentionPattern,
    implementation: str = "triton",
) -> Float[Array, "B L H N"]:
    """Attention by tokamax's Triton kernel for GPU.

    Source: tokamax 0.0.17, dot_product_attention.
    """
    # Imported here: an extra, which only GPUs need.
    import tokamax  # pyright: ignore[reportMissingImports]

    same_segment = segments[:, None, :, None] == segments[:, None, None, :]
    out = tokamax.dot_product_attention(
        q,
        k,
        v,
        mask=same_segment,
        scale=pattern.scale,
        is_causal=True,
        local_window_size=None if pattern.window is None else (pattern.window - 1, 0),
        logits_soft_cap=pattern.soft_cap,
        implementation=implementation,
    )
    return checkpoint_name(out, SAVED_NAME)

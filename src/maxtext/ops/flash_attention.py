"""`dot_product_attention` by kernels that others keep."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from maxtext.ops.attention import SAVED_NAME, AttentionPattern
from maxtext.parallel.rows import WHOLE, RowSplit
from maxtext.types import Array, Float, Int

# What the length of a row, or of each chunk that it is cut into, must be a multiple of.
FLASH_BLOCK = 128


def splash_flash_attention(
    q: Float[Array, "B L H N"],
    k: Float[Array, "B L K N"],
    v: Float[Array, "B L K N"],
    segments: Int[Array, "B S"],
    *,
    pattern: AttentionPattern,
    split: RowSplit = WHOLE,
) -> Float[Array, "B L H N"]:
    """Attention by JAX's splash attention kernel for TPU.

    Args:
        segments: Of whole rows, in their own order.
        split: Where rows are split, which runs inside a shard_map: each device gathers all keys.

    Source: jax 0.11, experimental/pallas/ops/tpu/splash_attention.
    """
    # Imported here: it takes a quarter of a second, which only TPUs need to spend.
    from jax.experimental.pallas.ops.tpu import splash_attention

    kernel = _splash_kernel(segments.shape[1], q.shape[2], pattern, split)
    own_segments = segments
    if split.ways > 1:
        me = jax.lax.axis_index(split.axes)
        kernel = _of_device(kernel, me, split.ways)
        own_segments = split.reordered(segments)
        own_segments = jax.lax.dynamic_slice_in_dim(own_segments, me * q.shape[1], q.shape[1], 1)
        k, v = (
            split.restored(jax.lax.all_gather(x, split.axes, axis=1, tiled=True)) for x in (k, v)
        )
    # The kernel scales nothing.
    heads_first = [x.swapaxes(1, 2) for x in (q * pattern.scale, k, v)]
    ids = splash_attention.SegmentIds(own_segments, segments)
    out: jax.Array = jax.vmap(kernel)(*heads_first, ids)  # pyright: ignore[reportAssignmentType]
    return checkpoint_name(out.swapaxes(1, 2), SAVED_NAME)


def _splash_kernel(length: int, heads: int, pattern: AttentionPattern, split: RowSplit) -> Any:
    """The kernel for the queries of all devices that split a row."""
    from jax.experimental.pallas.ops.tpu import splash_attention

    chunk = length // split.held.size
    block = next(size for size in (512, 256, FLASH_BLOCK) if chunk % size == 0)
    square = (length, length)
    if pattern.window is None:
        mask = splash_attention.CausalMask(square)
    else:
        mask = splash_attention.LocalMask(square, (pattern.window - 1, 0), offset=0)
    # The place of each query in its row.
    mask.q_sequence = split.places(length)
    return splash_attention.make_splash_mha(
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
        q_seq_shards=split.ways,
        attn_logits_soft_cap=pattern.soft_cap,
        residual_checkpoint_name=SAVED_NAME,
    )


def _of_device(kernel: Any, index: jax.Array, ways: int) -> Any:
    """The kernel for the queries of one of `ways` devices, as its sharding spec has it."""

    def part(x: jax.Array | None, dim: int) -> jax.Array | None:
        if x is None:
            return None
        size = x.shape[dim] // ways
        return jax.lax.dynamic_slice_in_dim(x, index * size, size, dim)

    infos, static = kernel.tree_flatten()
    parts = [
        info._replace(
            data_next=part(info.data_next, 1),
            mask_next=part(info.mask_next, 1),
            block_mask=part(info.block_mask, 1),
            q_sequence=part(info.q_sequence, 0),
        )
        for info in infos
    ]
    return kernel.tree_unflatten(static, parts)


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
        local_window_size=_look_back(pattern),
        logits_soft_cap=pattern.soft_cap,
        implementation=implementation,
    )
    return checkpoint_name(out, SAVED_NAME)


def cudnn_flash_attention(
    q: Float[Array, "B L H N"],
    k: Float[Array, "B L K N"],
    v: Float[Array, "B L K N"],
    segments: Int[Array, "B L"],
    *,
    pattern: AttentionPattern,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B L H N"]:
    """Attention by cuDNN's kernel for NVIDIA GPUs, through JAX; it has no soft cap.

    Source: jax 0.11, jax.nn.dot_product_attention.
    """
    assert pattern.soft_cap is None, pattern
    same_segment = segments[:, None, :, None] == segments[:, None, None, :]
    out = jax.nn.dot_product_attention(
        q,
        k,
        v,
        mask=same_segment,
        scale=pattern.scale,
        is_causal=True,
        local_window_size=_look_back(pattern),
        implementation=implementation,
    )
    return checkpoint_name(out, SAVED_NAME)


def te_flash_attention(
    q: Float[Array, "B L H N"],
    k: Float[Array, "B L K N"],
    v: Float[Array, "B L K N"],
    segments: Int[Array, "B L"],
    *,
    pattern: AttentionPattern,
    max_segments: int,
) -> Float[Array, "B L H N"]:
    """Attention by cuDNN's kernel for NVIDIA GPUs, through Transformer Engine; it has no soft cap.

    Args:
        max_segments: Documents in one row at most.

    Source: transformer_engine 2.20, jax/attention.py, fused_attn.
    """
    # Imported here: only those who installed it need it.
    from transformer_engine.jax import attention as te  # pyright: ignore[reportMissingImports]

    assert pattern.soft_cap is None, pattern
    out = te.fused_attn(
        (q, k, v),
        None,
        te.SequenceDescriptor.from_segment_ids_and_pos(segments, places_in_segments(segments)),
        None,
        attn_bias_type=te.AttnBiasType.NO_BIAS,
        attn_mask_type=te.AttnMaskType.PADDING_CAUSAL_MASK,
        # Despite its name it takes rows of several documents, [B, L, H, N].
        qkv_layout=te.QKVLayout.THD_THD_THD,
        softmax_type=te.AttnSoftmaxType.VANILLA_SOFTMAX,
        scaling_factor=pattern.scale,
        dropout_probability=0.0,
        is_training=True,
        max_segments_per_seq=max_segments,
        window_size=_look_back(pattern),
        context_checkpoint_name=SAVED_NAME,
    )
    return checkpoint_name(out, SAVED_NAME)


def places_in_segments(segments: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """How many tokens of its own segment stand before each token."""
    places = jnp.arange(segments.shape[1], dtype=jnp.int32)
    first = jnp.diff(segments, axis=1, prepend=-1) != 0
    return places - jax.lax.cummax(jnp.where(first, places, 0), axis=1)


def _look_back(pattern: AttentionPattern) -> tuple[int, int] | None:
    """The window as others count it: tokens before the query, tokens after it."""
    return None if pattern.window is None else (pattern.window - 1, 0)

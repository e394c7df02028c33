"""Causal attention over whole sequences; grouped queries everywhere, MHA and MQA its ends.

Every function scales the scores by head_dim ** -0.5, once and here alone.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from maxtext.types import Array, DType, Float, Int

# The name under which a remat policy keeps what the backward pass needs of attention's results.
SAVED_NAME = "attention_out"
FLASH_BLOCK = 128
MAX_BLOCKS = 8
MIN_BLOCK = 64


def num_query_blocks(length: int) -> int:
    """Blocks that `dot_product_attention` takes the queries in; each sees no key after its end."""
    fitting = (n for n in range(MAX_BLOCKS, 0, -1) if length % n == 0)
    return next(n for n in fitting if n == 1 or length // n >= MIN_BLOCK)


def dot_product_attention(
    q: Float[Array, "B L H N"],
    k: Float[Array, "B L K N"],
    v: Float[Array, "B L K N"],
    segments: Int[Array, "B L"],
    *,
    float32_qk_product: bool = False,
    float32_logits: bool = True,
) -> Float[Array, "B L H N"]:
    """Softmax attention to earlier tokens of the same segment, in plain XLA.

    Queries are taken in `num_query_blocks` blocks, whose scores exist one block at a time; the
    backward pass computes them anew. So nearly half of the products are left out, and no array
    grows with the square of the length but by the block.

    Args:
        float32_qk_product: Multiply queries and keys in float32 whatever their type.
        float32_logits: Take the softmax in float32.

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1; Ainslie et al. 2023,
        arXiv:2305.13245, for the groups; Dao et al. 2022, arXiv:2205.14135, appendix B.2, for the
        backward pass.
    """
    batch, length, heads, head_dim = q.shape
    kv_heads, dtype = k.shape[2], v.dtype
    if float32_qk_product:
        q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    grouped = q.reshape(batch, length, kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5
    queries = grouped.transpose(0, 2, 3, 1, 4)
    # In float32, so that the gradients of all blocks are added up in it; `_attend_block` takes
    # them in the types given here.
    keys, values = (x.swapaxes(1, 2).astype(jnp.float32) for x in (k, v))
    softmax_dtype = jnp.float32 if float32_logits else queries.dtype
    size = length // num_query_blocks(length)
    blocks = []
    for start in range(0, length, size):
        end = start + size
        blocks.append(
            _attend_block(
                queries[:, :, :, start:end],
                keys[:, :, :end],
                values[:, :, :end],
                segments[:, :end],
                softmax_dtype,
                dtype,
            )
        )
    out = jnp.concatenate(blocks, axis=3) if len(blocks) > 1 else blocks[0]
    return out.transpose(0, 3, 1, 2, 4).reshape(q.shape).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend_block(
    q: Float[Array, "B K G L N"],
    k: Float[Array, "B K S N"],
    v: Float[Array, "B K S N"],
    segments: Int[Array, "B S"],
    softmax_dtype: DType,
    dtype: DType,
) -> Float[Array, "B K G L N"]:
    """Attention of the last L of S tokens to all of them, causal and within segments.

    Keys are multiplied in the type of `q`, values and the result are of type `dtype`.
    """
    return _block_forward(q, k, v, segments, softmax_dtype, dtype)[0]


def _scores(q: jax.Array, k: jax.Array, segments: jax.Array, dtype: DType) -> jax.Array:
    """Scores of the last tokens against all, the lowest number where they must not look."""
    scores = jnp.einsum("bkgln,bksn->bkgls", q, k, preferred_element_type=dtype)
    length, total = q.shape[3], k.shape[2]
    place = jnp.arange(total)
    causal = place[-length:, None] >= place
    seen = causal & (segments[:, -length:, None] == segments[:, None, :])
    return jnp.where(seen[:, None, None], scores, jnp.finfo(dtype).min)


def _block_forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    softmax_dtype: DType,
    dtype: DType,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    k, v = k.astype(q.dtype), v.astype(dtype)
    scores = _scores(q, k, segments, softmax_dtype)
    highest = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - highest)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    out = jnp.einsum(
        "bkgls,bksn->bkgln", weights.astype(dtype), v, preferred_element_type=softmax_dtype
    )
    out = checkpoint_name((out / total).astype(dtype), SAVED_NAME)
    normalizer = checkpoint_name(highest + jnp.log(total), SAVED_NAME)
    return out, (q, k, v, segments, out, normalizer)


def _block_backward(
    softmax_dtype: DType, dtype: DType, saved: tuple[jax.Array, ...], grad: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q, k, v, segments, out, normalizer = saved
    in_float32 = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    weights = jnp.exp(_scores(q, k, segments, softmax_dtype) - normalizer)
    grad_v = in_float32("bkgls,bkgln->bksn", weights.astype(dtype), grad)
    grad_weights = in_float32("bkgln,bksn->bkgls", grad, v)
    through_total = jnp.sum(
        grad.astype(jnp.float32) * out.astype(jnp.float32), axis=-1, keepdims=True
    )
    grad_scores = (weights * (grad_weights - through_total)).astype(q.dtype)
    grad_q = jnp.einsum("bkgls,bksn->bkgln", grad_scores, k)
    grad_k = in_float32("bkgls,bkgln->bksn", grad_scores, q)
    return grad_q, grad_k, grad_v, None


_attend_block.defvjp(_block_forward, _block_backward)


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
        residual_checkpoint_name=SAVED_NAME,
        interpret=interpret,
    )
    heads_first = [x.swapaxes(1, 2) for x in (q * head_dim**-0.5, k, v)]
    ids = splash_attention.SegmentIds(segments, segments)
    out: jax.Array = jax.vmap(kernel)(*heads_first, ids)  # pyright: ignore[reportAssignmentType]
    return checkpoint_name(out.swapaxes(1, 2), SAVED_NAME)


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
    out = tokamax.dot_product_attention(
        q, k, v, mask=same_segment, is_causal=True, implementation=implementation
    )
    return checkpoint_name(out, SAVED_NAME)

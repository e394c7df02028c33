"""Self-attention. How keys are stored and which are seen is the business of the `attend` port."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from maxtext.config.schema import ComputeConfig, ModelConfig
from maxtext.layers.linears import Linear, linear, linear_params, split
from maxtext.layers.normalizations import AnyNorm, NormParams, norm, norm_params
from maxtext.ops import flash_attention
from maxtext.ops.attention import Arithmetic, AttentionPattern, dot_product_attention
from maxtext.ops.context_attention import Context, context_attention
from maxtext.ops.rope import rotate
from maxtext.parallel.layout import Layout, constrain, current_layout, exchange
from maxtext.parallel.params import pytree
from maxtext.parallel.rows import RowSplit, row_split
from maxtext.types import Array, DType, Float, Int

type Rotation = tuple[Float[Array, "B L half"], Float[Array, "B L half"]]
type Attend = Callable[[jax.Array, jax.Array, jax.Array, AttentionPattern], jax.Array]

HEADS = ("attn_activation_batch", "attn_activation_length", "activation_heads", "activation_kv")
KV_HEADS = (
    "attn_activation_batch",
    "attn_activation_length",
    "activation_kv_heads",
    "activation_kv",
)
# The same where heads are projected to and from.
_PROJECTED = (HEADS[0], "attn_projection_length", "attn_projection_heads", HEADS[3])
_PROJECTED_KV = (HEADS[0], "attn_projection_kv_length", "attn_projection_kv_heads", HEADS[3])


@pytree
class Attention:
    """Weights of grouped-query self-attention; the norms are None without `use_qk_norm`."""

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    query_norm: AnyNorm | None
    key_norm: AnyNorm | None


@pytree
class FusedAttention:
    """The same with queries, keys and values from one kernel.

    It is [embed, kv_heads, q_per_kv + 2, head_dim], its bias the same without `embed`: each KV head
    with the query heads that look at it, then its key, then its value. Devices split it by whole
    groups, so that what belongs together is made on one device.
    """

    qkv_proj: Linear
    out: Linear
    query_norm: AnyNorm | None
    key_norm: AnyNorm | None


type AnyAttention = Attention | FusedAttention


def attention_params(
    config: ModelConfig, *, dtype: DType, norm_params: NormParams = norm_params
) -> Attention:
    """Declares the weights of `attention`."""
    declare = functools.partial(linear_params, scale=config.dense_init_scale, dtype=dtype)
    embed, heads, kv_heads = config.emb_dim, config.num_query_heads, config.num_kv_heads
    one_norm = norm_params(config.head_dim, dtype=dtype, axis="kv") if config.use_qk_norm else None
    project_in = functools.partial(declare, bias=config.attention_bias)
    key_value = project_in((embed, kv_heads, config.head_dim), ("embed", "kv_heads", "kv"))
    return Attention(
        query=project_in((embed, heads, config.head_dim), ("embed", "heads", "kv")),
        key=key_value,
        value=key_value,
        out=declare((heads, config.head_dim, embed), ("heads", "kv", "embed"), num_in=2),
        query_norm=one_norm,
        key_norm=one_norm,
    )


def attention(
    params: AnyAttention,
    x: Float[Array, "B L D"],
    *,
    rotation: Rotation,
    attend: Attend,
    pattern: AttentionPattern,
    eps: float,
) -> Float[Array, "B L D"]:
    """Projects to heads, rotates queries and keys, attends, projects back."""
    x = constrain(x, "attn_activation_batch", "attn_projection_length", "attn_activation_embed")
    q, k, v = _projections(params, x)
    q = checkpoint_name(constrain(q, *HEADS), "query_proj")
    k = checkpoint_name(constrain(k, *KV_HEADS), "key_proj")
    v = checkpoint_name(constrain(v, *KV_HEADS), "value_proj")
    if params.query_norm is not None and params.key_norm is not None:
        q, k = norm(params.query_norm, q, eps=eps), norm(params.key_norm, k, eps=eps)
    attended = attend(rotate(q, rotation), rotate(k, rotation), v, pattern)
    attended = exchange(attended, HEADS, _PROJECTED)
    out = linear(params.out, attended, num_in=2)
    out = exchange(
        out,
        ("activation_batch", "attn_out_length", "attn_out_embed"),
        ("activation_batch", "activation_norm_length", "activation_embed"),
    )
    return checkpoint_name(out, "out_proj")


def _projections(params: AnyAttention, x: jax.Array) -> tuple[jax.Array, ...]:
    """Queries, keys and values, where they are computed.

    Where attention has them elsewhere, devices pass tokens of few heads on for few tokens of many
    heads.
    """
    if isinstance(params, FusedAttention):
        *lead, width = _PROJECTED_KV
        return split(constrain(linear(params.qkv_proj, x), *lead, None, width), 3)
    q = constrain(linear(params.query, x), *_PROJECTED)
    k, v = (constrain(linear(one, x), *_PROJECTED_KV) for one in (params.key, params.value))
    return q, k, v


def training_attend(
    config: ComputeConfig, segments: Int[Array, "B L"], *, max_segments: int | None = None
) -> Attend:
    """The port of training: causal within each segment, by the op that `config` names.

    Args:
        config: Resolved.
        segments: The document of each token, 0 for padding; whole rows in their own order,
            whatever order the layout holds tokens in.
        max_segments: Documents in one row at most, which only `cudnn_flash_te` asks for.
    """
    layout = current_layout()
    split = row_split(layout)
    if config.attention == "dot_product":
        op = _plain(config, split)
    else:
        op = _kernel(config.attention, max_segments, split)
    # What XLA can split over devices by itself.
    divisible = config.attention == "dot_product" and split.ways == 1

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, pattern: AttentionPattern) -> jax.Array:
        run = functools.partial(op, pattern=pattern)
        if layout is None or (divisible and k.shape[2] % layout.ways(HEADS[2]) == 0):
            return run(q, k, v, segments)
        return _per_device(run, layout, q, k, v, segments)

    return attend


def _plain(config: ComputeConfig, split: RowSplit) -> Callable[..., jax.Array]:
    """Attention in plain XLA, over rows that are whole or split."""
    arithmetic = Arithmetic(
        float32_qk_product=config.float32_qk_product, float32_logits=config.float32_logits
    )
    if split.ways == 1:
        return functools.partial(dot_product_attention, arithmetic=arithmetic)
    ring = config.context_parallel_strategy == "ring"
    context = Context(split=split, ring=ring, arithmetic=arithmetic)
    return functools.partial(context_attention, context=context)


def _kernel(attention: str, max_segments: int | None, split: RowSplit) -> Callable[..., jax.Array]:
    """Attention by a kernel for one kind of device."""
    if attention == "flash" and jax.default_backend() == "tpu":
        return functools.partial(flash_attention.splash_flash_attention, split=split)
    assert split.ways == 1, "other kernels see whole rows"
    if attention == "cudnn_flash_jax":
        return flash_attention.cudnn_flash_attention
    if attention == "cudnn_flash_te":
        assert max_segments is not None, "Transformer Engine must know how many documents there are"
        return functools.partial(flash_attention.te_flash_attention, max_segments=max_segments)
    assert attention == "flash", "`autoselected` is resolved before any layer runs"
    return flash_attention.triton_flash_attention


def _per_device(
    op: Callable[..., jax.Array],
    layout: Layout,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
) -> jax.Array:
    """Runs an op on each device's own rows, tokens and heads."""
    # Query heads must find the key and value heads of their groups on their own device, so these
    # are repeated where they are fewer than the devices.
    ways = layout.ways("activation_heads")
    copies = ways // math.gcd(ways, k.shape[2])
    k, v = (jnp.repeat(x, copies, axis=2) for x in (k, v))
    specs = tuple(layout.spec(HEADS, x.shape) for x in (q, k, v))
    rows = layout.spec((HEADS[0], None), segments.shape)
    run = jax.shard_map(
        op, mesh=layout.mesh, in_specs=(*specs, rows), out_specs=specs[0], check_vma=False
    )
    return run(q, k, v, segments)

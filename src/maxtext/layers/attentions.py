"""Self-attention. How keys are stored and which are seen is the business of the `attend` port."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from maxtext.config.schema import ComputeConfig, ModelConfig
from maxtext.layers.linears import Linear, linear, linear_params
from maxtext.layers.normalizations import AnyNorm, NormParams, norm, norm_params
from maxtext.ops import flash_attention
from maxtext.ops.attention import Arithmetic, AttentionPattern, dot_product_attention
from maxtext.ops.rope import rotate
from maxtext.parallel.layout import constrain, current_layout
from maxtext.parallel.params import pytree
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


@pytree
class Attention:
    """Weights of grouped-query self-attention; the norms are None without `use_qk_norm`."""

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    query_norm: AnyNorm | None
    key_norm: AnyNorm | None


def attention_params(
    config: ModelConfig, *, dtype: DType, norm_params: NormParams = norm_params
) -> Attention:
    """Declares the weights of `attention`."""
    declare = functools.partial(linear_params, scale=config.dense_init_scale, dtype=dtype)
    embed, heads, kv_heads = config.emb_dim, config.num_query_heads, config.num_kv_heads
    one_norm = norm_params(config.head_dim, dtype=dtype) if config.use_qk_norm else None
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
    params: Attention,
    x: Float[Array, "B L D"],
    *,
    rotation: Rotation,
    attend: Attend,
    pattern: AttentionPattern,
    eps: float,
) -> Float[Array, "B L D"]:
    """Projects to heads, rotates queries and keys, attends, projects back."""
    x = constrain(x, "attn_activation_batch", "attn_activation_length", "attn_activation_embed")
    q = checkpoint_name(constrain(linear(params.query, x), *HEADS), "query_proj")
    k = checkpoint_name(constrain(linear(params.key, x), *KV_HEADS), "key_proj")
    v = checkpoint_name(constrain(linear(params.value, x), *KV_HEADS), "value_proj")
    if params.query_norm is not None and params.key_norm is not None:
        q, k = norm(params.query_norm, q, eps=eps), norm(params.key_norm, k, eps=eps)
    attended = attend(rotate(q, rotation), rotate(k, rotation), v, pattern)
    attended = constrain(attended, *HEADS)
    out = linear(params.out, attended, num_in=2)
    out = constrain(out, "activation_batch", "activation_norm_length", "activation_embed")
    return checkpoint_name(out, "out_proj")


def training_attend(
    config: ComputeConfig, segments: Int[Array, "B L"], *, max_segments: int | None = None
) -> Attend:
    """The port of training: causal within each segment, by the op that `config` names.

    Args:
        config: Resolved.
        segments: The document of each token, 0 for padding.
        max_segments: Documents in one row at most, which only `cudnn_flash_te` asks for.
    """
    if config.attention == "dot_product":
        arithmetic = Arithmetic(
            float32_qk_product=config.float32_qk_product, float32_logits=config.float32_logits
        )
        return lambda q, k, v, pattern: dot_product_attention(
            q, k, v, segments, pattern=pattern, arithmetic=arithmetic
        )
    kernel = _kernel(config.attention, max_segments)
    return lambda q, k, v, pattern: _per_device(
        functools.partial(kernel, pattern=pattern), q, k, v, segments
    )


def _kernel(attention: str, max_segments: int | None) -> Callable[..., jax.Array]:
    """Attention by a kernel for one kind of device."""
    if attention == "cudnn_flash_jax":
        return flash_attention.cudnn_flash_attention
    if attention == "cudnn_flash_te":
        assert max_segments is not None, "Transformer Engine must know how many documents there are"
        return functools.partial(flash_attention.te_flash_attention, max_segments=max_segments)
    assert attention == "flash", "`autoselected` is resolved before any layer runs"
    return {
        "tpu": flash_attention.splash_flash_attention,
        "gpu": flash_attention.triton_flash_attention,
    }[jax.default_backend()]


def _per_device(
    kernel: Callable[..., jax.Array],
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
) -> jax.Array:
    """Runs a kernel that XLA cannot split on each device's own rows and heads."""
    layout = current_layout()
    if layout is None:
        return kernel(q, k, v, segments)
    # Query heads must find the key and value heads of their groups on their own device, so these
    # are repeated where they are fewer than the devices.
    ways = layout.ways("activation_heads")
    copies = ways // math.gcd(ways, k.shape[2])
    k, v = (jnp.repeat(x, copies, axis=2) for x in (k, v))
    specs = tuple(layout.spec(HEADS, x.shape) for x in (q, k, v))
    rows = layout.spec(HEADS[:2], segments.shape)
    run = jax.shard_map(
        kernel, mesh=layout.mesh, in_specs=(*specs, rows), out_specs=specs[0], check_vma=False
    )
    return run(q, k, v, segments)

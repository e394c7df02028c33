"""Gemma 2 and the text part of Gemma 3: norms on both sides of each branch, two kinds of layers."""

import jax

from maxtext.config.schema import ModelConfig
from maxtext.layers.attentions import AnyAttention, attention, attention_params
from maxtext.layers.linears import AnyMlp, mlp, mlp_params
from maxtext.layers.normalizations import CenteredNorm, centered_norm_params, norm
from maxtext.models.decoder import Call, Group
from maxtext.models.layer_kinds import global_kind, local_kind
from maxtext.ops.dropout import dropout
from maxtext.parallel.params import pytree
from maxtext.types import Array, DType, Float, PRNGKeyArray

# Of so many layers in a row the last sees everything, the others through the sliding window.
PERIODS = {"gemma2": 2, "gemma3": 6}


@pytree
class Layer:
    """Weights of one decoder layer."""

    pre_self_attention_norm: CenteredNorm
    self_attention: AnyAttention
    post_self_attention_norm: CenteredNorm
    pre_ffw_norm: CenteredNorm
    mlp: AnyMlp
    post_ffw_norm: CenteredNorm


def layer_params(config: ModelConfig, *, dtype: DType) -> Layer:
    """Declares the weights of `layer`."""
    one_norm = centered_norm_params(config.emb_dim, dtype=dtype)
    return Layer(
        pre_self_attention_norm=one_norm,
        self_attention=attention_params(config, dtype=dtype, norm_params=centered_norm_params),
        post_self_attention_norm=one_norm,
        pre_ffw_norm=one_norm,
        mlp=mlp_params(config, dtype=dtype),
        post_ffw_norm=one_norm,
    )


def layer(
    params: Layer, x: Float[Array, "B L D"], key: PRNGKeyArray | None, *, call: Call
) -> Float[Array, "B L D"]:
    """Adds attention, then the feed-forward layer, each between two norms, to the residual.

    Source: Gemma Team 2024, arXiv:2408.00118, and 2025, arXiv:2503.19786; transformers 5.19,
        modeling_gemma2.py and modeling_gemma3.py.
    """
    config, eps = call.config, call.config.normalization_layer_epsilon
    keys = (None, None) if key is None else jax.random.split(key)
    attended = attention(
        params.self_attention,
        norm(params.pre_self_attention_norm, x, eps=eps),
        rotation=call.rotation,
        attend=call.attend,
        pattern=call.pattern,
        eps=eps,
    )
    attended = norm(params.post_self_attention_norm, attended, eps=eps)
    x = x + dropout(attended, keys[0], rate=call.dropout_rate, rows=call.rows)
    fed = mlp(params.mlp, norm(params.pre_ffw_norm, x, eps=eps), activations=config.mlp_activations)
    return x + dropout(
        norm(params.post_ffw_norm, fed, eps=eps), keys[1], rate=call.dropout_rate, rows=call.rows
    )


def groups(config: ModelConfig, *, dtype: DType) -> tuple[Group, ...]:
    """The one group of layers, local ones with a global one at regular places."""
    local, everywhere = local_kind(config), global_kind(config)
    return (
        Group(
            name="layers",
            size=config.num_decoder_layers,
            params=layer_params(config, dtype=dtype),
            layer=layer,
            cycle=(*[local] * (PERIODS[config.decoder_block] - 1), everywhere),
        ),
    )

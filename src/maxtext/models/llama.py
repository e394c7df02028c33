"""Llama 2 to 3.3, and what is the same layer with other keys: Mistral, Qwen2.5, dense Qwen3."""

import jax

from maxtext.config.schema import ModelConfig
from maxtext.layers.attentions import AnyAttention, attention, attention_params
from maxtext.layers.linears import AnyMlp, mlp, mlp_params
from maxtext.layers.normalizations import Norm, norm, norm_params
from maxtext.models.decoder import Call, Group
from maxtext.models.layer_kinds import only_kind
from maxtext.ops.dropout import dropout
from maxtext.parallel.params import pytree
from maxtext.types import Array, DType, Float, PRNGKeyArray


@pytree
class Layer:
    """Weights of one decoder layer."""

    pre_self_attention_layer_norm: Norm
    self_attention: AnyAttention
    post_self_attention_layer_norm: Norm
    mlp: AnyMlp


def layer_params(config: ModelConfig, *, dtype: DType) -> Layer:
    """Declares the weights of `layer`."""
    one_norm = norm_params(config.emb_dim, dtype=dtype)
    return Layer(
        pre_self_attention_layer_norm=one_norm,
        self_attention=attention_params(config, dtype=dtype),
        post_self_attention_layer_norm=one_norm,
        mlp=mlp_params(config, dtype=dtype),
    )


def layer(
    params: Layer, x: Float[Array, "B L D"], key: PRNGKeyArray | None, *, call: Call
) -> Float[Array, "B L D"]:
    """Adds attention, then the feed-forward layer, each to the residual after a norm.

    Source: Touvron et al. 2023, arXiv:2307.09288; Jiang et al. 2023, arXiv:2310.06825;
        transformers 5.19, modeling_llama.py, modeling_mistral.py, modeling_qwen2.py and
        modeling_qwen3.py.
    """
    config, eps = call.config, call.config.normalization_layer_epsilon
    keys = (None, None) if key is None else jax.random.split(key)
    attended = attention(
        params.self_attention,
        norm(params.pre_self_attention_layer_norm, x, eps=eps),
        rotation=call.rotation,
        attend=call.attend,
        pattern=call.pattern,
        eps=eps,
    )
    x = x + dropout(attended, keys[0], rate=call.dropout_rate, rows=call.rows)
    normed = norm(params.post_self_attention_layer_norm, x, eps=eps)
    fed = mlp(params.mlp, normed, activations=config.mlp_activations)
    return x + dropout(fed, keys[1], rate=call.dropout_rate, rows=call.rows)


def groups(config: ModelConfig, *, dtype: DType) -> tuple[Group, ...]:
    """The one group of equal layers."""
    return (
        Group(
            name="layers",
            size=config.num_decoder_layers,
            params=layer_params(config, dtype=dtype),
            layer=layer,
            cycle=(only_kind(config),),
        ),
    )

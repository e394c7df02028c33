"""Token embeddings and the output head."""

import math

import jax
import jax.numpy as jnp
from jax.nn.initializers import normal

from maxtext.config.schema import ModelConfig
from maxtext.ops.dense import Turned, dense
from maxtext.parallel.layout import constrain, exchange
from maxtext.parallel.params import param, pytree
from maxtext.types import Array, DType, Float, Int, Weight

EMBEDDING_STDDEV = 0.02


@pytree
class Embedding:
    """Weights of a token embedding."""

    embedding: Weight


def embedding_params(config: ModelConfig, *, dtype: DType) -> Embedding:
    """Declares the weights of `embed`."""
    shape, draw = (config.vocab_size, config.emb_dim), normal(EMBEDDING_STDDEV)
    return Embedding(embedding=param(shape, ("vocab", "embed"), draw, dtype, num_in=1))


def embed(
    params: Embedding,
    tokens: Int[Array, "B L"],
    *,
    dtype: DType,
    scaled: bool = False,
    one_hot: bool = False,
) -> Float[Array, "B L D"]:
    """The embedding of each token, times the root of its width if `scaled`.

    The root is rounded to `dtype`, as the models that have it were trained so.

    Args:
        one_hot: Multiply the table with one-hot rows, rather than look tokens up: the same
            numbers, the same gradient up to rounding.
    """
    if one_hot:
        x = _selected(params.embedding.astype(dtype), tokens)
    else:
        x = jnp.take(params.embedding, tokens, axis=0).astype(dtype)
    if scaled:
        x = x * jnp.asarray(math.sqrt(x.shape[-1]), dtype)
    rows = ("activation_batch", "activation_norm_length")
    return exchange(x, (*rows, "looked_up_embed"), (*rows, "activation_embed"))


# The backward pass makes the rows anew: kept, they would be larger than the logits.
@jax.checkpoint
def _selected(table: Float[Array, "V D"], tokens: Int[Array, "B L"]) -> Float[Array, "B L D"]:
    rows = (tokens[..., None] == jnp.arange(table.shape[0])).astype(table.dtype)
    rows = constrain(rows, "activation_batch", "activation_length", "activation_vocab")
    # Fewer bits would round the table.
    return jnp.einsum("blv,vd->bld", rows, table, precision=jax.lax.Precision.HIGHEST)


def project_to_vocab(
    x: Float[Array, "B L D"],
    kernel: Float[Array, "D V"] | Turned,
    *,
    float32: bool,
    soft_cap: float = 0.0,
) -> Float[Array, "B L V"]:
    """Logits: `x` times the kernel in the type of `x`, or in float32.

    Args:
        soft_cap: Logits z become soft_cap * tanh(z / soft_cap), in float32; 0 leaves them.
    """
    x = constrain(x, "activation_batch", "activation_length", "activation_embed")
    if float32:
        x = x.astype(jnp.float32)
    logits = dense(x, kernel.astype(x.dtype))
    if soft_cap:
        logits = soft_cap * jnp.tanh(logits.astype(jnp.float32) / soft_cap)
    return constrain(logits, "activation_batch", "activation_length", "activation_vocab")


def head_kernel(embedding: Embedding) -> jax.Array:
    """The output head of a model with tied embeddings."""
    return embedding.embedding.T

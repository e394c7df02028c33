"""Logits to the next token."""

import jax
import jax.numpy as jnp

from maxtext.config.schema import DecodeConfig
from maxtext.types import Array, Float, Int, PRNGKeyArray


def next_token(
    logits: Float[Array, " V"], key: PRNGKeyArray, *, config: DecodeConfig, vocab_size: int
) -> Int[Array, ""]:
    """The token that the strategy picks.

    Args:
        logits: Of the whole embedding, which may have more rows than the tokenizer has tokens.
        key: Of this token alone.
        config: Strategy, temperature and bounds.
        vocab_size: Tokens of the tokenizer; rows beyond are never picked.

    Source: Holtzman et al. 2019, arXiv:1904.09751, section 3.1, for `nucleus`; the token that
        crosses the bound is kept.
    """
    logits = logits.astype(jnp.float32)
    logits = jnp.where(jnp.arange(logits.shape[0]) < vocab_size, logits, -jnp.inf)
    strategy = config.decode_sampling_strategy
    if strategy == "greedy":
        return jnp.argmax(logits)
    logits = logits / config.decode_sampling_temperature
    if strategy == "topk":
        lowest = jax.lax.top_k(logits, min(config.decode_sampling_top_k, vocab_size))[0][-1]
        logits = jnp.where(logits >= lowest, logits, -jnp.inf)
    elif strategy == "nucleus":
        descending = jnp.sort(logits)[::-1]
        probabilities = jax.nn.softmax(descending)
        before = jnp.cumsum(probabilities) - probabilities
        kept = before < config.decode_sampling_nucleus_p
        lowest = jnp.min(jnp.where(kept, descending, jnp.inf))
        logits = jnp.where(logits >= lowest, logits, -jnp.inf)
    return jax.random.categorical(key, logits)

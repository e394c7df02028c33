"""Logits to the next token of each sequence, by the settings of each."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from maxtext.decoding.requests import MAX_LOGPROBS, Sampling
from maxtext.parallel.params import pytree
from maxtext.types import Array, Bool, Float, Int


@pytree
class Settings:
    """`Sampling` of each row, as far as it changes numbers.

    Attributes:
        places: Tokens before the one that is chosen.
        seen: Which tokens occurred; None where nobody penalizes them.
    """

    temperature: Float[Array, " S"]
    top_k: Int[Array, " S"]
    top_p: Float[Array, " S"]
    min_p: Float[Array, " S"]
    repetition_penalty: Float[Array, " S"]
    seed: Int[Array, " S"]
    places: Int[Array, " S"]
    seen: Bool[Array, "S V"] | None


@pytree
class Logprobs:
    """Log probabilities by the model alone."""

    chosen: Float[Array, " S"]
    top: Float[Array, "S n"]
    top_tokens: Int[Array, "S n"]


@pytree
class Chosen:
    """The next token of each row, and its log probability and those of the likeliest."""

    tokens: Int[Array, " S"]
    logprobs: Logprobs | None


@dataclasses.dataclass(frozen=True)
class Mode:
    """What a step does beside taking the likeliest token of each row; a static argument.

    Attributes:
        draws: Rows may draw by chance.
        penalizes: Rows may have a repetition penalty.
        logprobs: Rows may want log probabilities.
    """

    draws: bool = False
    penalizes: bool = False
    logprobs: bool = False

    @classmethod
    def of(cls, samplings: list[Sampling]) -> "Mode":
        """The one of `MODES` that does no more than these need."""
        if any(one.repetition_penalty != 1 or one.logprobs is not None for one in samplings):
            return MODES[2]
        return MODES[1] if any(one.temperature > 0 for one in samplings) else MODES[0]


# Few, as each step is compiled for each.
MODES = (Mode(), Mode(draws=True), Mode(draws=True, penalizes=True, logprobs=True))


def choose(
    logits: Float[Array, "S V"], settings: Settings, *, mode: Mode, vocab_size: int
) -> Chosen:
    """The next token of each row; rows do not see each other.

    Args:
        vocab_size: Tokens of the tokenizer; the embedding may have more rows, never chosen.
    """
    real = jnp.arange(logits.shape[1]) < vocab_size
    logits = jnp.where(real, logits.astype(jnp.float32), -jnp.inf)
    asked = logits
    if mode.penalizes and settings.seen is not None:
        penalty = settings.repetition_penalty[:, None]
        weaker = jnp.where(logits > 0, logits / penalty, logits * penalty)
        logits = jnp.where(settings.seen, weaker, logits)
    tokens = _likeliest(logits, vocab_size=vocab_size)
    if mode.draws:
        drawn = _draw(_bounded(logits, settings), settings)
        tokens = jnp.where(settings.temperature > 0, drawn, tokens)
    if not mode.logprobs:
        return Chosen(tokens=tokens, logprobs=None)
    logprobs = jax.nn.log_softmax(asked, axis=-1)
    top, top_tokens = jax.lax.top_k(logprobs, min(MAX_LOGPROBS, vocab_size))
    chosen = jnp.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]
    return Chosen(tokens=tokens, logprobs=Logprobs(chosen=chosen, top=top, top_tokens=top_tokens))


def _likeliest(logits: Float[Array, "S V"], *, vocab_size: int) -> Int[Array, " S"]:
    """The first of the highest logits: `argmax`, for which XLA:CPU needs three times as long."""
    is_highest = logits == jnp.max(logits, axis=-1, keepdims=True)
    # None is, where one is no number.
    return jnp.min(jnp.where(is_highest, jnp.arange(logits.shape[1]), vocab_size - 1), axis=-1)


def _bounded(logits: Float[Array, "S V"], settings: Settings) -> Float[Array, "S V"]:
    """Logits over temperature, -inf for tokens beyond min-p, top-k and top-p, in this order.

    No row is sorted: the lowest logit that a bound keeps is found by halving the range of
    numbers, which costs the same on every device and mesh. Tokens of equal logits stay or go
    together.

    Source: Holtzman et al. 2019, arXiv:1904.09751, section 3.1, for top-p, of which the token
        that crosses the bound is kept; Nguyen et al. 2024, arXiv:2407.01082, for min-p.
    """
    temperature = jnp.where(settings.temperature > 0, settings.temperature, 1.0)[:, None]
    logits = logits / temperature
    highest = jnp.max(logits, axis=-1, keepdims=True)
    logits = jnp.where(logits >= highest + jnp.log(settings.min_p)[:, None], logits, -jnp.inf)
    size = logits.shape[1]
    top_k = jnp.where(settings.top_k > 0, settings.top_k, size)
    lowest = _lowest(lambda bound: jnp.sum(logits > bound, axis=-1) < top_k, logits)
    logits = jnp.where(logits >= lowest, logits, -jnp.inf)
    weights = jnp.exp(logits - highest)
    most = jnp.where(settings.top_p < 1, settings.top_p * jnp.sum(weights, axis=-1), jnp.inf)
    above = lambda bound: jnp.sum(jnp.where(logits > bound, weights, 0.0), axis=-1)  # noqa: E731
    lowest = _lowest(lambda bound: above(bound) < most, logits)
    return jnp.where(logits >= lowest, logits, -jnp.inf)


def _lowest(
    keeps: Callable[[jax.Array], jax.Array], logits: Float[Array, "S V"]
) -> Float[Array, "S 1"]:
    """The least number for which `keeps` holds, that holds for all larger ones, in each row."""

    def body(_: int, between: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = between
        middle = (low & high) + ((low ^ high) >> 1)
        kept = keeps(_number(middle))[:, None]
        return jnp.where(kept, low, middle), jnp.where(kept, middle, high)

    rows = (logits.shape[0], 1)
    low = _order(jnp.full(rows, -jnp.inf))
    high = _order(jnp.max(logits, axis=-1, keepdims=True))
    return _number(jax.lax.fori_loop(0, 32, body, (low, high))[1])


def _order(x: Float[Array, "..."]) -> Int[Array, "..."]:
    """Integers in the order of the numbers."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _number(order: Int[Array, "..."]) -> Float[Array, "..."]:
    """The inverse of `_order`."""
    bits = jnp.where(order < 0, order ^ jnp.int32(0x7FFFFFFF), order)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _draw(logits: Float[Array, "S V"], settings: Settings) -> Int[Array, " S"]:
    """A token of each row by its probability; it depends on the row's seed and place alone."""

    def one(row: jax.Array, seed: jax.Array, place: jax.Array) -> jax.Array:
        return jax.random.categorical(jax.random.fold_in(jax.random.key(seed), place), row)

    return jax.vmap(one)(logits, settings.seed, settings.places)

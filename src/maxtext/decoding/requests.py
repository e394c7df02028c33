"""What a caller of the engine hands in, and what it gets back."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

type FinishReason = Literal["eos", "stop", "length", "cancelled"]

MAX_LOGPROBS = 20


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the tokens of one request are chosen.

    Attributes:
        max_new_tokens: Tokens to generate at most.
        temperature: Logits are divided by it; 0 takes the likeliest token.
        top_k: Only the likeliest tokens of this number; 0: all.
        top_p: Only the likeliest tokens that hold this part of the probability; 1: all.
        min_p: Only tokens at least this part as likely as the likeliest; 0: all.
        repetition_penalty: Positive logits of tokens that occurred are divided by it, negative
            ones multiplied; 1: none.
        seed: All that the drawn numbers depend on, beside the place of the token.
        eos_ids: Tokens that end the text; they are no part of it.
        ignore_eos: Go on after them.
        stop: Texts that end the text; they are no part of it.
        logprobs: Return the log probability of each token and of so many of the likeliest; None:
            of none. They are the model's, before temperature and bounds.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    eos_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what is out of range."""
        for name, fine, allowed in (
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature < float("inf"), "at least 0"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 and 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < float("inf"), "above 0"),
            ("seed", 0 <= self.seed < 2**31, "between 0 and 2147483647"),
            ("stop", all(self.stop), "texts that are not empty"),
            ("logprobs", 0 <= (self.logprobs or 0) <= MAX_LOGPROBS, f"at most {MAX_LOGPROBS}"),
        ):
            if not fine:
                raise ValueError(f"{name}={getattr(self, name)} must be {allowed}")


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt and how to go on from it."""

    tokens: tuple[int, ...]
    sampling: Sampling

    def check(self, *, vocab_size: int, max_length: int) -> None:
        """Holds it against the model.

        Args:
            vocab_size: Tokens of the tokenizer.
            max_length: Tokens of a prompt and what follows it, at most.

        Raises:
            ValueError: The prompt is empty, holds what is no token, or is too long.
        """
        tokens, new = self.tokens, self.sampling.max_new_tokens
        if not tokens:
            raise ValueError("the prompt has no tokens")
        if not 0 <= min(tokens) <= max(tokens) < vocab_size:
            wrong = next(token for token in tokens if not 0 <= token < vocab_size)
            raise ValueError(f"the prompt has id {wrong}; tokens are 0 to {vocab_size - 1}")
        if len(tokens) + new > max_length:
            raise ValueError(
                f"{len(tokens)} tokens of the prompt and max_new_tokens={new} exceed "
                f"max_target_length={max_length}"
            )


@dataclasses.dataclass(frozen=True)
class Logprob:
    """Log probabilities at one new token.

    Attributes:
        chosen: Of the token.
        top: Of the likeliest tokens, by id, the likeliest first.
    """

    chosen: float
    top: dict[int, float]


@dataclasses.dataclass(frozen=True)
class Event:
    """What a step gave one request.

    Attributes:
        id: What `Engine.add` returned.
        tokens: New tokens, without one that ended the text.
        text: New text; it may lag behind the tokens, where it may yet become a stop text or half
            a character.
        logprobs: Of each of the tokens, where asked for.
        finish_reason: None while the request goes on.
    """

    id: int
    tokens: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[Logprob, ...] = ()
    finish_reason: FinishReason | None = None


class Steps(Protocol):
    """What `stream` needs of an engine."""

    def step(self) -> list[Event]:
        """One step, and what it gave requests."""
        ...

    def cancel(self, number: int) -> None:
        """Gives up a request."""
        ...


def stream(engine: Steps, numbers: Iterable[int]) -> Iterator[Event]:
    """Runs requests, by their ids, to their ends; events of others are dropped meanwhile.

    Those that have not ended when nobody reads on are given up.
    """
    left = set(numbers)
    try:
        while left:
            for event in engine.step():
                if event.id in left:
                    if event.finish_reason is not None:
                        left.remove(event.id)
                    yield event
    finally:
        for number in left:
            engine.cancel(number)

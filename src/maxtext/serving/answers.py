"""What clients get: OpenAI's JSON for the text of completions and chats, whole or in chunks."""

import dataclasses
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from maxtext.decoding.requests import Event, FinishReason, Logprob

type Object = dict[str, Any]

# What OpenAI writes where JSON has no number: of a token that cannot be.
_LOWEST = -9999.0
_REASONS: dict[FinishReason, str] = {"eos": "stop", "stop": "stop", "length": "length"}


@dataclasses.dataclass(frozen=True)
class Probable:
    """A token of an answer and how probable it was.

    Attributes:
        text: Of the token.
        logprob: Its log probability.
        top: Text and log probability of the likeliest tokens in its place.
    """

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]


@dataclasses.dataclass(frozen=True)
class Piece:
    """What came of one answer of a request.

    Attributes:
        index: Which answer.
        text: New text.
        probable: The new tokens; None where their probabilities are not asked for.
        finish_reason: OpenAI's; None while more is to come.
    """

    index: int
    text: str
    probable: tuple[Probable, ...] | None
    finish_reason: str | None = None


def piece(index: int, event: Event, text_of: Callable[[int], str], *, probable: bool) -> Piece:
    """What an event of the engine brings to an answer.

    Args:
        text_of: The text of a token.
        probable: Whether probabilities are asked for.
    """
    tokens = None
    if probable:
        pairs = zip(event.tokens, event.logprobs, strict=True)
        tokens = tuple(_probable(token, found, text_of) for token, found in pairs)
    reason = event.finish_reason and _REASONS[event.finish_reason]
    return Piece(index, event.text, tokens, reason)


def _probable(token: int, found: Logprob, text_of: Callable[[int], str]) -> Probable:
    top = tuple((text_of(one), max(value, _LOWEST)) for one, value in found.top.items())
    return Probable(text_of(token), max(found.chosen, _LOWEST), top)


def joined(pieces: Sequence[Piece]) -> Piece:
    """All pieces of one answer as one."""
    last = pieces[-1]
    probable = None
    if last.probable is not None:
        probable = tuple(token for one in pieces for token in one.probable or ())
    text = "".join(one.text for one in pieces)
    return Piece(last.index, text, probable, last.finish_reason)


class Form(Protocol):
    """How answers of one endpoint are written."""

    name: str
    chunk_name: str
    prefix: str

    def openings(self) -> Iterable[Object]:
        """What a stream begins with: a choice for each answer, or nothing."""
        ...

    def choice(self, answer: Piece) -> Object:
        """A whole answer."""
        ...

    def delta(self, new: Piece) -> Object:
        """A part of an answer in a stream."""
        ...


class Completions:
    """Plain texts.

    Args:
        echoes: What each answer begins with; all are empty unless `echo` is asked for.
    """

    name = "text_completion"
    chunk_name = "text_completion"
    prefix = "cmpl"

    def __init__(self, echoes: Sequence[str]) -> None:
        self._echoes = echoes
        self._offsets = [0] * len(echoes)

    def openings(self) -> Iterable[Object]:
        """The prompts, where they are echoed."""
        for index, echo in enumerate(self._echoes):
            if echo:
                yield self._written(Piece(index, echo, None), echo)

    def choice(self, answer: Piece) -> Object:
        """A whole answer."""
        return self._written(answer, self._echoes[answer.index] + answer.text)

    def delta(self, new: Piece) -> Object:
        """A part of an answer."""
        return self._written(new, new.text)

    def _written(self, one: Piece, text: str) -> Object:
        logprobs = None if one.probable is None else self._logprobs(one.index, one.probable)
        return {
            "index": one.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": one.finish_reason,
        }

    def _logprobs(self, index: int, tokens: Sequence[Probable]) -> Object:
        offsets: list[int] = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token.text)
        # Tokens of one text are one entry: the likeliest comes first and stays.
        tops = [dict(reversed([*token.top, (token.text, token.logprob)])) for token in tokens]
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


class Chats:
    """Messages of the assistant.

    Args:
        count: How many there are.
    """

    name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    prefix = "chatcmpl"

    def __init__(self, count: int) -> None:
        self._count = count

    def openings(self) -> Iterable[Object]:
        """Who speaks."""
        for index in range(self._count):
            delta = {"role": "assistant", "content": ""}
            yield {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def choice(self, answer: Piece) -> Object:
        """A whole message."""
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        return self._written(answer, "message", message)

    def delta(self, new: Piece) -> Object:
        """A part of a message."""
        return self._written(new, "delta", {"content": new.text} if new.text else {})

    def _written(self, one: Piece, name: str, content: Object) -> Object:
        logprobs = None
        if one.probable is not None:
            found = [_entry(t.text, t.logprob, top=t.top) for t in one.probable]
            logprobs = {"content": found, "refusal": None}
        return {
            "index": one.index,
            name: content,
            "logprobs": logprobs,
            "finish_reason": one.finish_reason,
        }


def _entry(text: str, logprob: float, *, top: Sequence[tuple[str, float]] | None = None) -> Object:
    # A part of a character has no text, and which bytes it is the tokenizer does not say.
    content = None if "\ufffd" in text else list(text.encode())
    entry: Object = {"token": text, "logprob": logprob, "bytes": content}
    return entry if top is None else entry | {"top_logprobs": [_entry(*one) for one in top]}


@dataclasses.dataclass(frozen=True)
class Answer:
    """The frame of one answer: what all chunks of it have in common."""

    form: Form
    model: str
    id: str
    created: int

    @classmethod
    def new(cls, form: Form, model: str) -> "Answer":
        """One with an id of its own."""
        return cls(form, model, f"{form.prefix}-{uuid.uuid4().hex}", int(time.time()))

    def whole(self, answers: Iterable[Piece], usage: Object) -> Object:
        """The answer in one."""
        choices = [self.form.choice(one) for one in answers]
        return self._frame(self.form.name, choices) | {"usage": usage}

    def chunk(self, choices: Sequence[Object], **usage: Object | None) -> Object:
        """A part of a stream; `usage` is there where the client asked for it."""
        return self._frame(self.form.chunk_name, choices) | usage

    def _frame(self, name: str, choices: Sequence[Object]) -> Object:
        return {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

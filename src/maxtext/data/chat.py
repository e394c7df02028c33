"""Chats, and prompts with completions, as documents of which only the answers count."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from maxtext.data.chat_template import ChatTemplate, Message
from maxtext.data.records import Chat, Where, checked_text, column_values
from maxtext.data.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class ChatColumns:
    """One column of messages, or one of prompts and one of completions.

    Prompt and completion are two texts, taken as they are, or two lists of messages. Messages are
    rendered by the template.

    Attributes:
        names: The columns.
        key: The key that names them.
        template: What renders messages; None: there is none.
        answers_only: What is not an answer has no weight in the loss.
    """

    names: tuple[str, ...]
    key: str
    template: ChatTemplate | None
    answers_only: bool

    def document(self, record: object, where: Where) -> Chat:
        """The chat of a record; raises as `Form`."""
        prompt, *rest = column_values(record, self, where)
        if isinstance(prompt, str) and rest and isinstance(rest[0], str):
            text = checked_text(prompt + rest[0], where)
            return self._chat(text, ((len(prompt), len(text)),), templated=False)
        before = _messages(prompt, self.names[0], where)
        after = _messages(rest[0], self.names[1], where) if rest else []
        return self._templated(before + after, len(before) if rest else 0, where)

    def text_document(self, text: str, where: Where) -> Chat:
        """Refused: a text does not say which part of it is an answer."""
        del text
        names = " and ".join(self.names)
        raise ValueError(
            f"{where()}: use_sft=true needs records with {names}, not text; set {self.key}"
        )

    def _templated(self, messages: Sequence[Message], first: int, where: Where) -> Chat:
        if self.template is None:
            raise ValueError(
                f"{where()}: messages need a chat template, and the tokenizer has none in "
                "tokenizer_config.json or chat_template.jinja; name a file: chat_template=FILE"
            )
        try:
            text, answers = self.template.answers(messages, first=first)
        except ValueError as error:
            raise ValueError(f"{where()}: {error}") from error
        return self._chat(checked_text(text, where), answers, templated=True)

    def _chat(self, text: str, answers: tuple[tuple[int, int], ...], *, templated: bool) -> Chat:
        return Chat(text, answers if self.answers_only else ((0, len(text)),), templated)


def encode_chat(chat: Chat, tokenizer: Tokenizer) -> np.ndarray:
    """Ids of the text; ~id for each token that shares no character with an answer."""
    ids, spans = tokenizer.encode_spans(chat.text)
    counts = np.zeros(ids.size, np.bool_)
    for start, end in chat.answers:
        counts |= (spans[:, 0] < end) & (spans[:, 1] > start)
    return np.where(counts, ids, ~ids)


def _messages(value: object, name: str, where: Where) -> list[Message]:
    """The messages in a column, checked; raises as `Form`."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(
            f"{where()}: column {name!r} must be a list of messages, not {type(value).__name__}"
        )
    if not value:
        raise ValueError(f"{where()}: column {name!r} has no messages")
    for number, message in enumerate(value, 1):
        wrong = message_fault(message)
        if wrong:
            # The place of a record is looked for only when it is told: that takes a while.
            raise ValueError(f"{where()}: message {number} of {name!r}{wrong}")
    return [cast(Message, dict(message)) for message in value]


def message_fault(message: object) -> str:
    """What is wrong with a message, to follow its name; nothing: it is one."""
    if not isinstance(message, Mapping):
        return f" must be an object, not {type(message).__name__}"
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            found = type(message[key]).__name__ if key in message else "missing"
            return f": {key!r} must be text, and is {found}"
    return ""

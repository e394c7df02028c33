"""Texts and chats to tokens, and tokens to the texts that stand in answers."""

import dataclasses
import functools
from collections.abc import Sequence

from maxtext.data.chat_template import ChatTemplate
from maxtext.data.tokenizer import Tokenizer
from maxtext.serving.bodies import Message
from maxtext.serving.errors import ApiError

_REMEMBERED = 1 << 16


@dataclasses.dataclass(frozen=True, eq=False)
class Prompts:
    """What turns a client's words into tokens.

    Attributes:
        tokenizer: Of the model.
        template: Of its chats; None: it has none.
        add_bos: Begin a text with the tokenizer's BOS. A chat begins as its template says.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    add_bos: bool

    def of_text(self, text: str) -> tuple[int, ...]:
        """Tokens of a text.

        Raises:
            ApiError: The tokenizer cannot encode it.
        """
        bos = self.tokenizer.bos_id if self.add_bos else None
        return (*(() if bos is None else (bos,)), *self._encode(text, "prompt"))

    def of_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Tokens of a chat, up to where the answer begins.

        Raises:
            ApiError: There is no template, or it refuses the messages.
        """
        if self.template is None:
            message = "this model has no chat template; its server takes one: chat_template=FILE"
            raise ApiError(400, message, "messages")
        try:
            text = self.template.prompt([one.for_template for one in messages])
        except ValueError as error:
            raise ApiError(400, str(error), "messages") from error
        return tuple(self._encode(text, "messages"))

    def _encode(self, text: str, param: str) -> list[int]:
        try:
            return self.tokenizer.encode(text)
        except ValueError as error:
            raise ApiError(400, str(error), param) from error


class TokenTexts:
    """The text of each token by itself, with the space that it may begin with."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Some tokenizers drop a space at the beginning: a token in front keeps it.
        before = tokenizer.encode("a")[-1:]
        length = len(tokenizer.decode(before))

        @functools.lru_cache(_REMEMBERED)
        def text(token: int) -> str:
            return tokenizer.decode([*before, token])[length:]

        self._text = text

    def __call__(self, token: int) -> str:
        """The text; U+FFFD where it is a part of a character, nothing where it is special."""
        return self._text(token)

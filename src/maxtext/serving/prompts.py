"""Texts and chats to tokens, and tokens to the texts that stand in answers."""

import functools
from collections.abc import Callable, Sequence

from maxtext.data.tokenizer import Tokenizer
from maxtext.decoding.encoding import Encoder
from maxtext.serving.bodies import Message
from maxtext.serving.errors import ApiError

_REMEMBERED = 1 << 16


def text_tokens(encoder: Encoder, text: str) -> tuple[int, ...]:
    """Tokens of a text.

    Raises:
        ApiError: The tokenizer cannot encode it.
    """
    try:
        return encoder.text(text)
    except ValueError as error:
        raise ApiError(400, str(error), "prompt") from error


def chat_tokens(encoder: Encoder, messages: Sequence[Message]) -> tuple[int, ...]:
    """Tokens of a chat, up to where the answer begins.

    Raises:
        ApiError: There is no template, or it refuses the messages.
    """
    try:
        return encoder.chat([one.for_template for one in messages])
    except ValueError as error:
        raise ApiError(400, str(error), "messages") from error


def token_texts(tokenizer: Tokenizer) -> Callable[[int], str]:
    """The text of each token by itself, with the space that it may begin with.

    U+FFFD where it is a part of a character, nothing where it is special.
    """
    # Some tokenizers drop a space at the beginning: a token in front keeps it.
    before = tokenizer.encode("a")[-1:]
    length = len(tokenizer.decode(before))

    @functools.lru_cache(_REMEMBERED)
    def text(token: int) -> str:
        return tokenizer.decode([*before, token])[length:]

    return text

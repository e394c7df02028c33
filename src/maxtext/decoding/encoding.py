"""Texts and chats to the tokens that a model goes on from."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from maxtext.config.huggingface_files import CONFIG, GENERATION_CONFIG, read_object
from maxtext.config.schema import Config
from maxtext.config.schema_training import DataConfig
from maxtext.config.values import Json
from maxtext.data.chat_template import ChatTemplate, Message
from maxtext.data.opening import find_chat_template
from maxtext.data.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class Encoder:
    """What turns words into tokens, and knows which tokens end an answer.

    Attributes:
        tokenizer: Of the model.
        template: Of its chats; None: it has none.
        add_bos: Begin a text with the tokenizer's BOS. A chat begins as its template says.
        eos_ids: Tokens that end an answer.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    add_bos: bool
    eos_ids: tuple[int, ...]

    def text(self, text: str) -> tuple[int, ...]:
        """Tokens of a text.

        Raises:
            ValueError: The tokenizer cannot encode it.
        """
        bos = self.tokenizer.bos_id if self.add_bos else None
        return (*(() if bos is None else (bos,)), *self.tokenizer.encode(text))

    def chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Tokens of a chat, up to where the answer begins.

        Raises:
            ValueError: There is no template, or it refuses the messages.
        """
        if self.template is None:
            raise ValueError(
                "the tokenizer has no chat template in tokenizer_config.json or "
                "chat_template.jinja; name a file at the start: chat_template=FILE"
            )
        return tuple(self.tokenizer.encode(self.template.prompt(messages)))


def load_encoder(config: Config, tokenizer: Tokenizer) -> Encoder:
    """The encoder that a config describes.

    Raises:
        ValueError: The chat template is none, or a file beside the tokenizer is damaged.
    """
    return Encoder(
        tokenizer=tokenizer,
        template=find_chat_template(config.data),
        add_bos=config.data.add_bos,
        eos_ids=tuple(map(int, config.decode.decode_eos_ids)) or _ending(config.data, tokenizer),
    )


def _ending(data: DataConfig, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokenizer's EOS, and those of a generation_config.json or a config.json beside it."""
    found: list[Json] = [tokenizer.eos_id]
    if data.tokenizer_type != "byte":
        path = Path(os.path.expanduser(data.tokenizer_path))
        folder = path if path.is_dir() else path.parent
        model = read_object(folder / CONFIG, missing={})
        ids = read_object(folder / GENERATION_CONFIG, missing=model).get("eos_token_id")
        found += ids if isinstance(ids, list) else [ids]
    return tuple(sorted({one for one in found if type(one) is int}))

"""Text to token ids and back."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from maxtext.config.schema_training import DataConfig


class Tokenizer(Protocol):
    """Text to ids without special tokens; ids to text without them either."""

    @property
    def name(self) -> str:
        """What it is called in messages, and in states: it differs where the ids would."""
        ...

    @property
    def bos_id(self) -> int | None:
        """Begin of a document; None: the tokenizer has none."""
        ...

    @property
    def eos_id(self) -> int | None:
        """End of a document; None: the tokenizer has none."""
        ...

    @property
    def pad_id(self) -> int | None:
        """Padding; None: the tokenizer has none. No loss depends on it."""
        ...

    @property
    def vocab_size(self) -> int:
        """The highest id + 1."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        ...

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of each text, as integer arrays."""
        ...

    def encode_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """`encode` as an array, and [ids, 2]: the characters that each id stands for, as a slice.

        Ids that are parts of one character have the same one.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        ...


@dataclasses.dataclass(frozen=True)
class ByteTokenizer:
    """The bytes of UTF-8; special tokens are bytes that UTF-8 never uses."""

    name: str = "byte"
    bos_id: int = 254
    eos_id: int = 255
    pad_id: int = 253
    vocab_size: int = 256

    def encode(self, text: str) -> list[int]:
        """The bytes of the text."""
        return list(text.encode())

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The bytes of each text."""
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def encode_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The bytes, and the character of each."""
        ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        # All bytes of a character but its first are 10xxxxxx.
        character = np.cumsum(ids & 0xC0 != 0x80) - 1
        return ids, np.stack([character, character + 1], axis=1)

    def decode(self, ids: Sequence[int]) -> str:
        """Text; bytes that are no UTF-8 become U+FFFD."""
        specials = (self.bos_id, self.eos_id, self.pad_id)
        return bytes(one for one in ids if one not in specials).decode(errors="replace")


def load_tokenizer(config: DataConfig, *, vocab_size: int) -> Tokenizer:
    """The tokenizer that `tokenizer_type` and `tokenizer_path` name.

    Raises:
        ValueError: There is no tokenizer at that path, it has more tokens than the model, or it
            has no BOS or EOS though `add_bos` or `add_eos` asks for it.
    """
    tokenizer = _load(config)
    if tokenizer.vocab_size > vocab_size:
        raise ValueError(
            f"tokenizer {tokenizer.name} makes ids up to {tokenizer.vocab_size - 1}, but "
            f"vocab_size={vocab_size}; set vocab_size={tokenizer.vocab_size} or more"
        )
    for key, asked, token in (
        ("add_bos", config.add_bos, tokenizer.bos_id),
        ("add_eos", config.add_eos, tokenizer.eos_id),
    ):
        if asked and token is None:
            where = (
                ""
                if config.tokenizer_type == "sentencepiece"
                else " that it has in tokenizer_config.json or special_tokens_map.json"
            )
            raise ValueError(
                f"{key}=true, but tokenizer {tokenizer.name} names no {key[4:]}_token{where}; "
                f"set {key}=false"
            )
    return tokenizer


def _load(config: DataConfig) -> Tokenizer:
    if config.tokenizer_type == "byte":
        return ByteTokenizer()
    # Each library is imported where it is wanted.
    if config.tokenizer_type == "sentencepiece":
        from maxtext.data.sentencepiece_tokenizer import load_sentencepiece

        return load_sentencepiece(_file(config, "tokenizer.model"))
    from maxtext.data.huggingface_tokenizer import load_huggingface

    return load_huggingface(_file(config, "tokenizer.json"))


def _file(config: DataConfig, name: str) -> Path:
    path = config.tokenizer_path
    file = Path(os.path.expanduser(path))
    if file.is_dir():
        file = file / name
    if not path or not file.is_file():
        raise ValueError(
            f"tokenizer_path={path!r}: no {name} there; tokenizer_type={config.tokenizer_type} "
            "needs a local folder that holds one"
        )
    return file

"""SentencePiece models, as Llama 2 and Gemma brought them."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sentencepiece


@dataclasses.dataclass(frozen=True)
class SentencePieceTokenizer:
    """A tokenizer.model; no BOS or EOS is put by itself."""

    model: sentencepiece.SentencePieceProcessor
    name: str

    @property
    def bos_id(self) -> int | None:
        """Begin of a document, where the model has one."""
        return _known(self.model.bos_id())

    @property
    def eos_id(self) -> int | None:
        """End of a document, where the model has one."""
        return _known(self.model.eos_id())

    @property
    def pad_id(self) -> int | None:
        """Padding, where the model has it."""
        return _known(self.model.pad_id())

    @property
    def vocab_size(self) -> int:
        """Pieces of the model."""
        return self.model.get_piece_size()

    def encode(self, text: str) -> list[int]:
        """Ids of the text."""
        return self.model.encode(text)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text."""
        return [np.array(ids, np.int32) for ids in self.model.encode(list(texts))]

    def encode_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids of the text, and from which to which character each stands for."""
        found = self.model.encode(text, return_type="offset_mapping")
        spans = np.array(found["offsets"], np.int64).reshape(-1, 2)
        # Of the bytes of a character that is no piece, only the last one has its width.
        spans[:, 1] = np.maximum(spans[:, 1], spans[:, 0] + 1)
        return np.array(found["ids"], np.int32), spans

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.model.decode([int(one) for one in ids])


def load_sentencepiece(file: Path) -> SentencePieceTokenizer:
    """The tokenizer in a file.

    Raises:
        ValueError: It is no SentencePiece model.
    """
    content = file.read_bytes()
    if not content:
        raise ValueError(f"{file} is no SentencePiece model: it is empty")
    try:
        model = sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise ValueError(f"{file} is no SentencePiece model, or cut off") from error
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    return SentencePieceTokenizer(model, name=f"{file.name} ({digest})")


def _known(token: int) -> int | None:
    return None if token < 0 else token

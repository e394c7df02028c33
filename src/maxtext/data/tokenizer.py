"""Text to token ids and back."""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers

from maxtext.config.schema import DataConfig


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

    def decode(self, ids: Sequence[int]) -> str:
        """Text; bytes that are no UTF-8 become U+FFFD."""
        specials = (self.bos_id, self.eos_id, self.pad_id)
        return bytes(one for one in ids if one not in specials).decode(errors="replace")


@dataclasses.dataclass(frozen=True)
class HuggingFaceTokenizer:
    """A tokenizer.json; its own BOS, EOS, truncation and padding are left out."""

    model: tokenizers.Tokenizer
    name: str
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    vocab_size: int

    def encode(self, text: str) -> list[int]:
        """Ids of the text."""
        with self._errors():
            return self.model.encode(text, add_special_tokens=False).ids

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text; texts run in parallel."""
        with self._errors():
            encodings = self.model.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, np.int32) for one in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.model.decode(list(ids), skip_special_tokens=True)

    @contextlib.contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"tokenizer {self.name} cannot encode a text: {error}") from error


def load_tokenizer(config: DataConfig, *, vocab_size: int) -> Tokenizer:
    """The tokenizer that `tokenizer_type` and `tokenizer_path` name.

    Raises:
        ValueError: There is no tokenizer at that path, it has more tokens than the model, or it
            has no BOS or EOS though `add_bos` or `add_eos` asks for it.
    """
    tokenizer: Tokenizer = ByteTokenizer()
    if config.tokenizer_type == "huggingface":
        tokenizer = _load_huggingface(config.tokenizer_path)
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
            raise ValueError(
                f"{key}=true, but tokenizer {tokenizer.name} names no {key[4:]}_token that it has "
                f"in tokenizer_config.json or special_tokens_map.json; set {key}=false"
            )
    return tokenizer


def _load_huggingface(path: str) -> HuggingFaceTokenizer:
    file = Path(os.path.expanduser(path))
    if file.is_dir():
        file = file / "tokenizer.json"
    if not path or not file.is_file():
        raise ValueError(
            f"tokenizer_path={path!r}: no tokenizer.json there; tokenizer_type=huggingface needs "
            "a local folder that holds one"
        )
    content = file.read_bytes()
    try:
        model = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{file} is no tokenizer: {error}") from error
    vocabulary = model.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise ValueError(f"{file} is no tokenizer: it has no tokens")
    model.no_truncation()
    model.no_padding()
    tokens = _special_tokens(file.parent)
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    ids = {name: model.token_to_id(token) for name, token in tokens.items()}
    return HuggingFaceTokenizer(
        model=model,
        name=f"{file.parent.name or file} ({digest})",
        bos_id=ids.get("bos_token"),
        eos_id=ids.get("eos_token"),
        pad_id=ids.get("pad_token"),
        # Ids may have gaps: their number says less than the highest.
        vocab_size=max(vocabulary.values()) + 1,
    )


def _special_tokens(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = folder / name
        if not file.is_file():
            continue
        try:
            entries: Any = json.loads(file.read_bytes())
        except ValueError as error:
            raise ValueError(f"{file} is no JSON: {error}") from error
        if not isinstance(entries, dict):
            raise ValueError(f"{file} is no JSON object")
        for key in ("bos_token", "eos_token", "pad_token"):
            entry = entries.get(key)
            token = entry.get("content") if isinstance(entry, dict) else entry
            if token and not isinstance(token, str):
                raise ValueError(f"{file}: {key} must be text, not {type(token).__name__}")
            if token:
                found[key] = token
    return found

"""Hugging Face's tokenizer.json, and what lies beside it."""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import tokenizers

from maxtext.config.errors import ConfigError
from maxtext.config.huggingface_files import TOKENIZER_CONFIG, TOKENIZER_NAMES, read_object
from maxtext.data.chat_template import ChatTemplate, check_template, template_text

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token")


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

    def encode_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids of the text, and from which to which character each stands for."""
        with self._errors():
            one = self.model.encode(text, add_special_tokens=False)
        return np.array(one.ids, np.int32), np.array(one.offsets, np.int64).reshape(-1, 2)

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.model.decode(list(ids), skip_special_tokens=True)

    @contextlib.contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"tokenizer {self.name} cannot encode a text: {error}") from error


def load_huggingface(file: Path) -> HuggingFaceTokenizer:
    """The tokenizer of a tokenizer.json, with the names of special tokens from beside it.

    Raises:
        ValueError: A file is no such file.
    """
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
    tokens = special_tokens(file.parent)
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


def special_tokens(folder: Path) -> dict[str, str]:
    """The text of `bos_token`, `eos_token` and `pad_token`, of those that are named.

    Raises:
        ConfigError: A file is no JSON object, or names something else.
    """
    found: dict[str, str] = {}
    for name in (TOKENIZER_NAMES, TOKENIZER_CONFIG):
        entries = read_object(folder / name, missing={})
        for key in SPECIAL_TOKENS:
            entry = entries.get(key)
            token = entry.get("content") if isinstance(entry, dict) else entry
            if not token:
                continue
            if not isinstance(token, str):
                kind = type(token).__name__
                raise ConfigError(f"{folder / name}: {key} must be text, not {kind}")
            found[key] = token
    return found


def load_chat_template(file: str, folder: Path | None) -> ChatTemplate | None:
    """The template in `file`; without one, that of the tokenizer in a folder, where it has one.

    Raises:
        ValueError: It is no template.
    """
    tokens = tuple(special_tokens(folder).items()) if folder else ()
    if file:
        return _template_file(Path(os.path.expanduser(file)), tokens)
    if folder is None:
        return None
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _template_file(path, tokens)
    path = folder / TOKENIZER_CONFIG
    source = template_text(read_object(path, missing={}).get("chat_template"), str(path))
    return None if source is None else check_template(ChatTemplate(source, str(path), tokens))


def _template_file(path: Path, tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    try:
        source = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: the chat template cannot be read: {error}") from error
    return check_template(ChatTemplate(source, str(path), tokens))

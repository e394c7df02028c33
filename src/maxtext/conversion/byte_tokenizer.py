"""The byte tokenizer as files of Hugging Face's, with the same ids."""

from pathlib import Path

from tokenizers import pre_tokenizers

from maxtext.config.huggingface_files import TOKENIZER, TOKENIZER_CONFIG
from maxtext.conversion.side_files import write_json
from maxtext.conversion.tokenizer_parts import added_token, begin_with, byte_level
from maxtext.data.tokenizer import ByteTokenizer


def write_byte_tokenizer(folder: Path, *, add_bos: bool) -> None:
    """Writes tokenizer.json and tokenizer_config.json; `add_bos` puts BOS before each text."""
    numbers = ByteTokenizer()
    specials = {"<pad>": numbers.pad_id, "<bos>": numbers.bos_id, "<eos>": numbers.eos_id}
    vocabulary = {_LETTERS[byte]: byte for byte in range(256) if byte not in specials.values()}
    level = byte_level(words=False)
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(n, one, special=True) for one, n in specials.items()],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": begin_with("<bos>", numbers.bos_id) if add_bos else None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {**vocabulary, **specials}, "merges": []},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": add_bos,
        "clean_up_tokenization_spaces": False,
        **{f"{token.strip('<>')}_token": token for token in specials},
    }
    write_json(folder / TOKENIZER, tokenizer)
    write_json(folder / TOKENIZER_CONFIG, config)


def _letters() -> dict[int, str]:
    """What stands for each byte in Hugging Face's byte-level vocabularies.

    Printable bytes stand for themselves, the others in order for what follows U+0100.
    """
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    plain = {byte: chr(byte) for byte in range(256) if chr(byte) in alphabet}
    rest = [byte for byte in range(256) if byte not in plain]
    return plain | dict(zip(rest, sorted(alphabet - set(plain.values())), strict=True))


_LETTERS = _letters()

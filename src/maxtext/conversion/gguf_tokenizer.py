"""The tokenizer in a GGUF file as Hugging Face's tokenizer.json and tokenizer_config.json.

Source: llama.cpp, src/llama-vocab.cpp, for what each kind of pre-tokenizer does; the files of the
models that they are named for.
"""

from collections.abc import Mapping
from typing import Any

from maxtext.conversion.errors import ConversionError
from maxtext.conversion.tokenizer_parts import added_token, begin_with, byte_level

type Object = dict[str, Any]

_CONTROL, _USER_DEFINED = 3, 4
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> list[Any]:
    return [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        byte_level(words=False),
    ]


_PRE: Mapping[str, list[Any]] = {
    "gpt-2": [byte_level(words=True)],
    "smollm": [{"type": "Digits", "individual_digits": True}, byte_level(words=True)],
    "llama-bpe": _split(_WORDS % "1,3"),
    "qwen2": _split(_WORDS % "1"),
}
_COMPOSED = ("qwen2",)
_WHOLE_WORDS = ("llama-bpe",)
_ADDS_BOS = ("llama-bpe",)


def tokenizer_json(metadata: Mapping[str, Any]) -> Object:
    """The tokenizer.json of what stands under `tokenizer.ggml.`.

    Raises:
        ConversionError: It is of a kind that is not known.
    """
    kind = metadata.get("model")
    if kind == "gpt2":
        parts = _byte_pairs(metadata)
    elif kind == "llama":
        parts = _sentence_pieces(metadata)
    else:
        raise ConversionError(f"tokenizers of the kind {kind!r} are not read; gpt2 and llama are")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(metadata),
        "post_processor": _post_processor(metadata),
        **parts,
    }


def tokenizer_config(metadata: Mapping[str, Any]) -> Object:
    """The tokenizer_config.json, chat template included."""
    config: Object = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds_bos(metadata),
        "clean_up_tokenization_spaces": False,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = metadata.get(f"{key}_token_id")
        if number is not None:
            config[f"{name}_token"] = metadata["tokens"][number]
    if metadata.get("chat_template"):
        config["chat_template"] = metadata["chat_template"]
    return config


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether BOS goes before a text; where the file does not say, as llama.cpp does."""
    default = metadata["model"] == "llama" or metadata.get("pre") in _ADDS_BOS
    return bool(metadata.get("add_bos_token", default))


def _byte_pairs(metadata: Mapping[str, Any]) -> Object:
    kind = metadata.get("pre", "")
    if kind not in _PRE:
        raise ConversionError(
            f"pre-tokenizers of the kind {kind!r} are not read; {', '.join(_PRE)} are"
        )
    return {
        "normalizer": {"type": "NFC"} if kind in _COMPOSED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE[kind]},
        "decoder": byte_level(words=True),
        "model": {
            "type": "BPE",
            "vocab": _vocabulary(metadata),
            "merges": [merge.split(" ", 1) for merge in metadata["merges"]],
            "ignore_merges": kind in _WHOLE_WORDS,
        },
    }


def _sentence_pieces(metadata: Mapping[str, Any]) -> Object:
    space = {"String": " "}
    prefixed = bool(metadata.get("add_space_prefix", True))
    prefix: list[Any] = [{"type": "Prepend", "prepend": "▁"}] if prefixed else []
    strip: list[Any] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    decoders: list[Any] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *(strip if prefixed else []),
    ]
    replace: Any = {"type": "Replace", "pattern": space, "content": "▁"}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, replace]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": metadata["tokens"][metadata.get("unknown_token_id", 0)],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": _vocabulary(metadata),
            "merges": _merges(metadata),
        },
    }


def _merges(metadata: Mapping[str, Any]) -> list[Any]:
    """Pairs in the order in which sentencepiece would join them: the better whole first."""
    vocabulary = _vocabulary(metadata)
    found: list[tuple[float, int, int, list[Any]]] = []
    for token, score in zip(metadata["tokens"], metadata["scores"], strict=True):
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                found.append((-score, left, right, [token[:cut], token[cut:]]))
    return [pair for *_, pair in sorted(found, key=lambda one: one[:3])]


def _vocabulary(metadata: Mapping[str, Any]) -> dict[str, int]:
    return {token: number for number, token in enumerate(metadata["tokens"])}


def _added_tokens(metadata: Mapping[str, Any]) -> list[Any]:
    return [
        added_token(number, token, special=kind == _CONTROL)
        for number, (token, kind) in enumerate(
            zip(metadata["tokens"], metadata["token_type"], strict=True)
        )
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _post_processor(metadata: Mapping[str, Any]) -> Any:
    number = metadata.get("bos_token_id")
    if not adds_bos(metadata) or number is None:
        return None
    return begin_with(metadata["tokens"][number], number)

"""Parts of Hugging Face's tokenizer.json."""

from typing import Any


def byte_level(*, words: bool) -> dict[str, Any]:
    """Bytes as letters; `words` cuts the text into GPT-2's words first."""
    parts = {"add_prefix_space": False, "trim_offsets": True, "use_regex": words}
    return {"type": "ByteLevel", **parts}


def added_token(number: int, text: str, *, special: bool) -> dict[str, Any]:
    """A token that is found in a text before anything else."""
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return {"id": number, "content": text, **dict.fromkeys(flags, False), "special": special}


def begin_with(bos: str, number: int) -> dict[str, Any]:
    """What puts BOS before a text, and before both of a pair."""
    first = [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    other = [{"SpecialToken": {"id": bos, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, *other],
        "special_tokens": {bos: {"id": bos, "ids": [number], "tokens": [bos]}},
    }

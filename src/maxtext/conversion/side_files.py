"""What lies beside the weights of a Hugging Face model: its config and its tokenizer's files."""

import json
import shutil
from pathlib import Path

from maxtext.config.huggingface import config_json
from maxtext.config.huggingface_files import (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TOKENIZER_NAMES,
    Object,
    read_object,
)
from maxtext.config.schema import ModelConfig
from maxtext.data.huggingface_tokenizer import SPECIAL_TOKENS, special_tokens

_TOKENIZER_FILES = (
    TOKENIZER,
    TOKENIZER_CONFIG,
    GENERATION_CONFIG,
    TOKENIZER_NAMES,
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


def copy_side_files(source: Path, target: Path) -> None:
    """Copies what a folder, or that of a tokenizer.json, has of such files and the target not."""
    folder = source if source.is_dir() else source.parent
    for name in (CONFIG, *_TOKENIZER_FILES):
        if (folder / name).is_file() and not (target / name).exists():
            shutil.copyfile(folder / name, target / name)


def write_config(folder: Path, model: ModelConfig, *, dtypes: set[str]) -> None:
    """Writes config.json in the place of any that is there, and generation_config.json if none is.

    Args:
        folder: Where the tokenizer's files are.
        model: The model.
        dtypes: Types of the weights.

    Raises:
        ConfigError: Hugging Face has no such model.
    """
    dtype = "float32" if len(dtypes) > 1 else next(iter(dtypes))
    tokens = token_ids(folder)
    write_json(folder / CONFIG, {**config_json(model), **tokens, "torch_dtype": dtype})
    if not (folder / GENERATION_CONFIG).is_file():
        write_json(folder / GENERATION_CONFIG, {"_from_model_config": True, **tokens})


def token_ids(side: Path) -> Object:
    """The ids of BOS, EOS and padding, by the config.json of a folder or else by its tokenizer."""
    config = read_object(side / CONFIG, missing={})
    named = special_tokens(side)
    added = read_object(side / TOKENIZER, missing={}).get("added_tokens")
    ids: Object = {}
    for one in added if isinstance(added, list) else []:
        if isinstance(one, dict):
            ids[str(one.get("content"))] = one.get("id")
    return {
        f"{name}_id": config.get(f"{name}_id", ids.get(named.get(name, "")))
        for name in SPECIAL_TOKENS
    }


def write_json(file: Path, value: Object) -> None:
    """Writes an object as Hugging Face does."""
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")

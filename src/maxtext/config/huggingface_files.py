"""The files of a Hugging Face folder that say what it is."""

import json
from pathlib import Path
from typing import cast

from maxtext.config.errors import ConfigError, Origin, Problem
from maxtext.config.values import Json

type Object = dict[str, Json]

CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
# Older models name special tokens, and the ids that end a text, in files of their own.
TOKENIZER_NAMES, GENERATION_CONFIG = "special_tokens_map.json", "generation_config.json"


def adds_bos(folder: Path) -> bool:
    """Whether a folder's tokenizer puts BOS before a text.

    Raises:
        ConfigError: A file cannot be read.
    """
    asked = read_object(folder / TOKENIZER_CONFIG, missing={}).get("add_bos_token")
    if isinstance(asked, bool):
        return asked
    processor = read_object(folder / TOKENIZER, missing={}).get("post_processor")
    parts: list[Json] = [processor]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            single = part.get("single")
            if isinstance(single, list) and single and isinstance(single[0], dict):
                return "SpecialToken" in single[0]
            inner = part.get("processors")
            parts += inner if isinstance(inner, list) else []
    return False


def read_object(file: Path, *, missing: Object | None = None) -> Object:
    """A JSON object in a file.

    Args:
        file: The file.
        missing: What to return where there is no file; None makes that an error.

    Raises:
        ConfigError: The file cannot be read, or holds something else.
    """
    origin = Origin("checkpoint", str(file))
    try:
        value = cast(Json, json.loads(file.read_bytes()))
    except FileNotFoundError as error:
        if missing is not None:
            return missing
        raise ConfigError([Problem("", "there is no such file", origin=origin)]) from error
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise ConfigError([Problem("", message, origin=origin)]) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError([Problem("", "is not JSON", origin=origin)]) from error
    if not isinstance(value, dict):
        raise ConfigError([Problem("", "is no JSON object", origin=origin)])
    return value

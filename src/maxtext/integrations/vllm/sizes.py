"""What vLLM hears of a model that it does not compute."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maxtext.config.errors import ConfigError, Problem
from maxtext.config.schema import Config

ARCHITECTURE = "MaxTextForCausalLM"
# Of these vLLM makes its cache and checks what it is asked.
_SIZES = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)


def model_json(config: Config) -> dict[str, Any]:
    """What vLLM has to know of a model that it does not compute: its sizes, as those of a Llama.

    Raises:
        ConfigError: The file of `hf_config_path` is none, or contradicts them.
    """
    model = config.model
    ours = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": model.emb_dim,
        "intermediate_size": model.mlp_dim,
        "num_hidden_layers": model.num_decoder_layers,
        "num_attention_heads": model.num_query_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": max(
            model.max_position_embeddings, config.data.max_target_length
        ),
    }
    path = config.vllm.hf_config_path
    theirs = _read_json(Path(os.path.expanduser(path), "config.json")) if path else {}
    for name, value in theirs.items():
        if name in ours and name != "model_type" and value != ours[name]:
            message = f"its config.json has {name}={value}, but the model has {ours[name]}"
            raise ConfigError([Problem("hf_config_path", message, value=path)])
    return {**theirs, **ours}


def require_sizes(config: Config, described: Any) -> None:
    """Raises ConfigError where vLLM was told of another model: its cache would not fit."""
    ours = model_json(config)
    theirs = {name: getattr(described, name, None) or ours[name] for name in _SIZES}
    _require_equal(ours, theirs, "the model is not that of the folder that vLLM was given", config)


def require_same_model(newest: Config, served: Config) -> None:
    """Raises ConfigError where what is stored now is no newer state of what is served."""
    now, before = (one.model.model_dump(mode="json", by_alias=True) for one in (newest, served))
    _require_equal(now, before, "what is stored there now is another model", served)


def _require_equal(
    found: Mapping[str, Any], wanted: Mapping[str, Any], message: str, config: Config
) -> None:
    differing = [
        f"{name}={found[name]} instead of {value}"
        for name, value in wanted.items()
        if found[name] != value
    ]
    if differing:
        path = config.checkpoint.load_parameters_path or None
        message = f"{message}: {', '.join(differing)}"
        raise ConfigError([Problem("load_parameters_path", message, value=path)])


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError([Problem("hf_config_path", f"{file}: {reason}")]) from error
    if not isinstance(found, dict):
        raise ConfigError([Problem("hf_config_path", f"{file} is no JSON object")])
    return found

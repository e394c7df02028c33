"""A Hugging Face `config.json` as the keys of a model, and back."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from maxtext.config.errors import ConfigError, Origin, Problem
from maxtext.config.flat import flat_source
from maxtext.config.schema import ModelConfig
from maxtext.config.sources import Source
from maxtext.config.values import Json, value_text

type Object = dict[str, Json]

CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"


@dataclasses.dataclass(frozen=True)
class Family:
    """What one `model_type` of Hugging Face's is here.

    Attributes:
        decoder_block: Our name.
        architecture: The class that transformers makes of it.
        fixed: Our keys that the family decides by itself.
        defaults: What transformers takes for keys that a config.json leaves out.
    """

    decoder_block: str
    architecture: str
    fixed: Mapping[str, Json]
    defaults: Mapping[str, Json]


_DEFAULTS: Object = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
FAMILIES = {
    "llama": Family("llama2", "LlamaForCausalLM", {"use_qk_norm": False}, _DEFAULTS),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", {"use_qk_norm": True}, _DEFAULTS),
}
_NAMES = {
    "vocab_size": "vocab_size",
    "base_emb_dim": "hidden_size",
    "base_mlp_dim": "intermediate_size",
    "base_num_decoder_layers": "num_hidden_layers",
    "base_num_query_heads": "num_attention_heads",
    "base_num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "max_position_embeddings": "max_position_embeddings",
    "normalization_layer_epsilon": "rms_norm_eps",
    "logits_via_embedding": "tie_word_embeddings",
}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu_pytorch_tanh", "relu": "relu"}
_LLAMA3 = {
    "rope_factor": "factor",
    "rope_low_freq_factor": "low_freq_factor",
    "rope_high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
}
# What these keys must be; any other value is a model that is not built here.
_UNSUPPORTED: Mapping[str, tuple[Json, ...]] = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "partial_rotary_factor": (1.0, None),
    "quantization_config": (None,),
}


def huggingface_source(folder: Path) -> Source:
    """What the files of a Hugging Face folder say about the model and its tokenizer.

    Raises:
        ConfigError: config.json cannot be read, or is of a model that is not built here.
    """
    file = folder / CONFIG
    origin = Origin("checkpoint", str(file))
    model = flat_source(model_settings(read_object(file), origin), origin)
    tokenizer: Object = {
        "tokenizer_type": "huggingface",
        "tokenizer_path": str(folder),
        "add_bos": adds_bos(folder),
    }
    return flat_source(tokenizer, Origin("checkpoint", str(folder))).over(model)


def model_settings(config: Object, origin: Origin) -> Object:
    """The model that a config.json describes, under our names.

    Raises:
        ConfigError: It is a model that is not built here, or a key is missing.
    """
    family = _family(config, origin)
    theirs = {**family.defaults, **config}
    problems = [
        Problem(
            key,
            "is not supported",
            value=value_text(theirs[key]),
            origin=origin,
            hint=f"only {' or '.join(map(value_text, allowed))} is",
        )
        for key, allowed in _UNSUPPORTED.items()
        if key in theirs and theirs[key] not in allowed
    ]
    heads, width = theirs.get("num_attention_heads"), theirs.get("hidden_size")
    if theirs.get("num_key_value_heads") is None:
        theirs["num_key_value_heads"] = heads
    if theirs.get("head_dim") is None and isinstance(heads, int) and isinstance(width, int):
        theirs["head_dim"] = width // max(1, heads)
    settings: Object = {"decoder_block": family.decoder_block, **family.fixed}
    for ours, name in _NAMES.items():
        if theirs.get(name) is None:
            problems.append(Problem(name, "is missing", origin=origin))
        settings[ours] = theirs.get(name)
    for read in (_activations, _rope):
        try:
            settings |= read(theirs, origin)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return settings


def config_json(model: ModelConfig) -> Object:
    """The config.json of a model.

    Raises:
        ConfigError: Hugging Face has no such model.
    """
    model_type = next(
        name for name, one in FAMILIES.items() if one.decoder_block == model.decoder_block
    )
    family = FAMILIES[model_type]
    ours = cast(Object, model.model_dump(mode="json", by_alias=True))
    for key, value in family.fixed.items():
        if ours[key] != value:
            message = f"Hugging Face's {model_type} has it {value_text(value)}"
            raise ConfigError([Problem(key, message, value=value_text(ours[key]))])
    first, *gate = model.mlp_activations
    if first not in _ACTIVATIONS or gate != ["linear"]:
        text = value_text(model.mlp_activations)
        message = f"Hugging Face's {model_type} has no such feed-forward layer"
        raise ConfigError([Problem("mlp_activations", message, value=text)])
    scaling: Json = None
    if model.rope_type == "llama3.1":
        scaling = {"rope_type": "llama3", **{name: ours[key] for key, name in _LLAMA3.items()}}
    return {
        "architectures": [family.architecture],
        "model_type": model_type,
        **{name: ours[key] for key, name in _NAMES.items()},
        "hidden_act": _ACTIVATIONS[first],
        "rope_theta": model.rope_max_timescale,
        "rope_scaling": scaling,
    }


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


def _family(config: Object, origin: Origin) -> Family:
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    text = value_text(model_type) if model_type is not None else None
    message = "is no family that is built here" if text else "is missing"
    hint = f"there are {', '.join(FAMILIES)}"
    raise ConfigError([Problem("model_type", message, value=text, origin=origin, hint=hint)])


def _activations(theirs: Object, origin: Origin) -> Object:
    name = theirs["hidden_act"]
    for ours, known in _ACTIVATIONS.items():
        if name == known:
            return {"mlp_activations": [ours, "linear"]}
    hint = f"only {', '.join(_ACTIVATIONS.values())} are"
    raise ConfigError(
        [
            Problem(
                "hidden_act", "is not supported", value=value_text(name), origin=origin, hint=hint
            )
        ]
    )


def _rope(theirs: Object, origin: Origin) -> Object:
    """Base and scaling, which newer versions of transformers keep in one object."""
    key = "rope_parameters" if theirs.get("rope_parameters") else "rope_scaling"
    rope = theirs.get(key) or {}
    if not isinstance(rope, dict):
        raise ConfigError([Problem(key, "is no object", origin=origin)])
    settings: Object = {"rope_max_timescale": rope.get("rope_theta", theirs["rope_theta"])}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _ROPE:
        text, hint = value_text(kind), f"only {', '.join(_ROPE)} are"
        message = "this kind of RoPE scaling is not supported"
        raise ConfigError([Problem(key, message, value=text, origin=origin, hint=hint)])
    return settings | _ROPE[kind](rope, origin)


def _default(rope: Object, origin: Origin) -> Object:
    del rope, origin
    return {"rope_type": "default"}


def _llama3(rope: Object, origin: Origin) -> Object:
    missing = [name for name in _LLAMA3.values() if name not in rope]
    if missing:
        raise ConfigError([Problem("rope_scaling", f"lacks {', '.join(missing)}", origin=origin)])
    return {"rope_type": "llama3.1", **{ours: rope[name] for ours, name in _LLAMA3.items()}}


_ROPE: dict[str, Callable[[Object, Origin], Object]] = {"default": _default, "llama3": _llama3}

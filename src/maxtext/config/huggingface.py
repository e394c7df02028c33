"""A Hugging Face `config.json` as the keys of a model, and back."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from maxtext.config.errors import ConfigError, Origin, Problem
from maxtext.config.flat import flat_source
from maxtext.config.huggingface_files import CONFIG, Object, adds_bos, read_object
from maxtext.config.huggingface_rope import rope_json, rope_settings
from maxtext.config.schema import ModelConfig
from maxtext.config.sources import Source
from maxtext.config.values import Json, value_text


@dataclasses.dataclass(frozen=True)
class Family:
    """What one `model_type` of Hugging Face's is here.

    Attributes:
        decoder_block: Our name.
        architecture: The class that transformers makes of it.
        fixed: Our keys that the family decides by itself.
        defaults: What transformers takes for keys that a config.json leaves out.
        windowed: Whether layers may have a sliding window.
        period: Of so many layers in a row the last has none; 1: all layers are alike.
        activation: Its name of that key.
    """

    decoder_block: str
    architecture: str
    fixed: Mapping[str, Json]
    defaults: Mapping[str, Json]
    windowed: bool = False
    period: int = 1
    activation: str = "hidden_act"

    def layer_types(self, size: int, window: int) -> list[Json]:
        """What newer config.json files say of each layer."""
        windowed: list[Json] = ["sliding_attention" if window else "full_attention"]
        cycle = windowed * (self.period - 1) + ["full_attention"] if self.period > 1 else windowed
        return (cycle * size)[:size]


_DEFAULTS: Object = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
_GEMMA_DEFAULTS: Object = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_GEMMA2_DEFAULTS: Object = {
    **_GEMMA_DEFAULTS,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "rope_theta": 10000.0,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3_DEFAULTS: Object = {
    **_GEMMA_DEFAULTS,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
}
_PLAIN: Object = {"use_qk_norm": False, "attention_bias": False}
_NORMED: Object = {"use_qk_norm": True, "attention_bias": False}
_BIASED: Object = {"use_qk_norm": False, "attention_bias": True}
FAMILIES = {
    "llama": Family("llama2", "LlamaForCausalLM", _PLAIN, _DEFAULTS),
    "mistral": Family("mistral", "MistralForCausalLM", _PLAIN, _DEFAULTS, windowed=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", _BIASED, _DEFAULTS),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", _NORMED, _DEFAULTS),
    "gemma2": Family(
        "gemma2",
        "Gemma2ForCausalLM",
        _PLAIN,
        _GEMMA2_DEFAULTS,
        windowed=True,
        period=2,
        activation="hidden_activation",
    ),
    "gemma3_text": Family(
        "gemma3",
        "Gemma3ForCausalLM",
        _NORMED,
        _GEMMA3_DEFAULTS,
        windowed=True,
        period=6,
        activation="hidden_activation",
    ),
}
_GEMMA = ("gemma2", "gemma3")
# Models that see are read for their text part.
_TEXT_PARTS = {"gemma3": "gemma3_text"}
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
# What these keys must be; any other value is a model that is not built here.
_UNSUPPORTED: Mapping[str, tuple[Json, ...]] = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "use_bidirectional_attention": (False, None),
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
    config = _text_part(config)
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
    for read in (_activations, _attention, rope_settings):
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
    return {
        "architectures": [family.architecture],
        "model_type": model_type,
        **{name: ours[key] for key, name in _NAMES.items()},
        family.activation: _ACTIVATIONS[first],
        **_attention_json(model, family),
        **rope_json(model),
    }


def _family(config: Object, origin: Origin) -> Family:
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    text = value_text(model_type) if model_type is not None else None
    message = "is no family that is built here" if text else "is missing"
    hint = f"there are {', '.join(FAMILIES)}"
    raise ConfigError([Problem("model_type", message, value=text, origin=origin, hint=hint)])


def _text_part(config: Object) -> Object:
    """The config of the part that reads and writes text."""
    kind, part = config.get("model_type"), config.get("text_config")
    if isinstance(kind, str) and kind in _TEXT_PARTS and isinstance(part, dict):
        return {**part, "model_type": _TEXT_PARTS[kind]}
    return config


def _activations(theirs: Object, origin: Origin) -> Object:
    key = _family(theirs, origin).activation
    name = theirs[key]
    for ours, known in _ACTIVATIONS.items():
        if name == known:
            return {"mlp_activations": [ours, "linear"]}
    hint = f"only {', '.join(_ACTIVATIONS.values())} are"
    message = "is not supported"
    raise ConfigError([Problem(key, message, value=value_text(name), origin=origin, hint=hint)])


def _attention(theirs: Object, origin: Origin) -> Object:
    """Windows, soft caps and scale."""
    family = _family(theirs, origin)
    window = theirs.get("sliding_window") if family.windowed else None
    settings: Object = {"sliding_window_size": window or 0}
    types = theirs.get("layer_types")
    # Not of num_hidden_layers, which may be anything yet.
    size = len(types) if isinstance(types, list) else 0
    known = size == theirs.get("num_hidden_layers") and types == family.layer_types(
        size, bool(window)
    )
    if types is not None and not known:
        message = f"{family.decoder_block} has other kinds of layers in other places"
        raise ConfigError([Problem("layer_types", message, origin=origin)])
    if theirs.get("sliding_window_pattern") not in (None, family.period):
        message = f"only {family.period} is supported"
        raise ConfigError([Problem("sliding_window_pattern", message, origin=origin)])
    if family.decoder_block in _GEMMA:
        scalar = theirs["query_pre_attn_scalar"]
        settings |= {
            "query_pre_attn_scalar": 0.0 if scalar == theirs["head_dim"] else scalar,
            "attn_logits_soft_cap": theirs.get("attn_logit_softcapping") or 0.0,
            "final_logits_soft_cap": theirs.get("final_logit_softcapping") or 0.0,
        }
    return settings


def _attention_json(model: ModelConfig, family: Family) -> Object:
    """The same for a config.json.

    Raises:
        ConfigError: The family has no such attention.
    """
    written: Object = {}
    if family.windowed:
        written["sliding_window"] = model.sliding_window_size or None
    if family.decoder_block in _GEMMA:
        scalar = model.query_pre_attn_scalar or model.head_dim
        written |= {
            # Newer versions of transformers take no float for it.
            "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
            "attn_logit_softcapping": model.attn_logits_soft_cap or None,
            "final_logit_softcapping": model.final_logits_soft_cap or None,
        }
    odd = {
        "sliding_window_size": not family.windowed and model.sliding_window_size,
        "query_pre_attn_scalar": model.query_pre_attn_scalar,
        "attn_logits_soft_cap": model.attn_logits_soft_cap,
        "final_logits_soft_cap": model.final_logits_soft_cap,
    }
    for key, value in odd.items():
        if value and (key == "sliding_window_size" or family.decoder_block not in _GEMMA):
            message = f"Hugging Face's {family.architecture} has none"
            raise ConfigError([Problem(key, message, value=value_text(value))])
    return written

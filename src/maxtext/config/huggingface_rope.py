"""RoPE in a `config.json`: base and scaling, which newer versions of transformers keep together."""

import math
from collections.abc import Callable
from typing import cast

from maxtext.config.errors import ConfigError, Origin, Problem
from maxtext.config.huggingface_files import Object
from maxtext.config.schema import ModelConfig
from maxtext.config.values import Json, value_text

_LLAMA3 = {
    "rope_factor": "factor",
    "rope_low_freq_factor": "low_freq_factor",
    "rope_high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
}


def rope_settings(theirs: Object, origin: Origin) -> Object:
    """Our keys for RoPE.

    Args:
        theirs: The config.json, with what it leaves out.
        origin: Of it.

    Raises:
        ConfigError: The scaling is of a kind that is not built here.
    """
    key = "rope_parameters" if theirs.get("rope_parameters") else "rope_scaling"
    rope = _object(theirs.get(key) or {}, key, origin)
    local = theirs.get("rope_local_base_freq")
    if "full_attention" in rope:
        local = _object(rope.get("sliding_attention") or {}, key, origin).get("rope_theta", local)
        rope = _object(rope["full_attention"], key, origin)
    settings: Object = {"rope_max_timescale": rope.get("rope_theta", theirs["rope_theta"])}
    if local is not None:
        settings["local_rope_max_timescale"] = local
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in _KINDS:
        message = "this kind of RoPE scaling is not supported"
        hint = f"only {', '.join(_KINDS)} are"
        problem = Problem(key, message, value=value_text(kind), origin=origin, hint=hint)
        raise ConfigError([problem])
    factor = rope.get("factor")
    if kind != "default" and not (isinstance(factor, int | float) and factor >= 1):
        raise ConfigError([Problem(key, "needs a factor of at least 1", origin=origin)])
    return settings | _KINDS[kind](rope, theirs, origin)


def rope_json(model: ModelConfig) -> Object:
    """The same of a model, as all versions of transformers read it."""
    scaling: Json = None
    match model.rope_type:
        case "default":
            pass
        case "linear":
            scaling = {"rope_type": "linear", "factor": model.rope_linear_scaling_factor}
        case "llama3.1":
            ours = cast(Object, model.model_dump(mode="json", by_alias=True))
            scaling = {"rope_type": "llama3", **{name: ours[key] for key, name in _LLAMA3.items()}}
        case "yarn":
            scaling = {
                "rope_type": "yarn",
                "factor": model.rope_factor,
                "beta_fast": model.beta_fast,
                "beta_slow": model.beta_slow,
                "original_max_position_embeddings": model.original_max_position_embeddings,
                "truncate": model.rope_truncate,
                **_attention_factor(model),
            }
    local = model.local_rope_max_timescale
    return {
        "rope_theta": model.rope_max_timescale,
        "rope_scaling": scaling,
        **({"rope_local_base_freq": local} if local > 0 else {}),
    }


def _default(rope: Object, theirs: Object, origin: Origin) -> Object:
    del rope, theirs, origin
    return {"rope_type": "default"}


def _linear(rope: Object, theirs: Object, origin: Origin) -> Object:
    del theirs, origin
    return {"rope_type": "linear", "rope_linear_scaling_factor": rope["factor"]}


def _llama3(rope: Object, theirs: Object, origin: Origin) -> Object:
    del theirs
    missing = [name for name in _LLAMA3.values() if name not in rope]
    if missing:
        raise ConfigError([Problem("rope_scaling", f"lacks {', '.join(missing)}", origin=origin)])
    return {"rope_type": "llama3.1", **{ours: rope[name] for ours, name in _LLAMA3.items()}}


def _yarn(rope: Object, theirs: Object, origin: Origin) -> Object:
    del origin
    settings: Object = {
        "rope_type": "yarn",
        "rope_factor": rope["factor"],
        "beta_fast": rope.get("beta_fast") or 32.0,
        "beta_slow": rope.get("beta_slow") or 1.0,
        "rope_truncate": rope.get("truncate", True),
        "original_max_position_embeddings": rope.get("original_max_position_embeddings")
        or theirs.get("max_position_embeddings"),
    }
    return settings | _attention_scaling(rope)


_KINDS: dict[str, Callable[[Object, Object, Origin], Object]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


def _attention_scaling(rope: Object) -> Object:
    """What rotated queries and keys are multiplied by, as 1 + 0.1 mscale ln(factor)."""
    log = 0.1 * math.log(cast(float, rope["factor"]))
    factor = cast(float | None, rope.get("attention_factor"))
    above, below = (cast(float | None, rope.get(key)) for key in ("mscale", "mscale_all_dim"))
    if factor is None and above and below:
        factor = (1 + log * above) / (1 + log * below)
    if factor is None:
        return {"rope_attention_scaling": True, "mscale": 1.0}
    if factor == 1 or log <= 0:
        return {"rope_attention_scaling": False}
    return {"rope_attention_scaling": True, "mscale": (factor - 1) / log}


def _attention_factor(model: ModelConfig) -> Object:
    if not model.rope_attention_scaling:
        return {"attention_factor": 1.0}
    if model.mscale == 1:
        return {}
    return {"attention_factor": 1 + 0.1 * model.mscale * math.log(model.rope_factor)}


def _object(value: Json, key: str, origin: Origin) -> Object:
    if not isinstance(value, dict):
        raise ConfigError([Problem(key, "is no object", origin=origin)])
    return value

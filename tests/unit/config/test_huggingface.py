"""config.json to our keys and back, held to what the released models say."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from maxtext.config.errors import ConfigError, Origin
from maxtext.config.flat import flat_source
from maxtext.config.huggingface import config_json, model_settings
from maxtext.config.load import load
from maxtext.config.schema import ModelConfig
from maxtext.config.trained import read_model
from maxtext.config.yaml_files import config_folder

# What decides about the function in the config.json of each released size.
RELEASED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("released.json").read_text()
)
ORIGIN = Origin("checkpoint", "config.json")


def read(config: dict[str, Any]) -> ModelConfig:
    return read_model(flat_source(model_settings(config, ORIGIN), ORIGIN))


def test_every_model_file_has_its_released_config() -> None:
    assert {path.stem for path in (config_folder() / "models").glob("*.yml")} == set(RELEASED)


@pytest.mark.parametrize("name", RELEASED)
def test_a_model_file_says_what_the_released_config_says(name: str) -> None:
    assert read(RELEASED[name]) == load([f"model_name={name}"], {}).config.model


@pytest.mark.parametrize("name", RELEASED)
def test_a_written_config_is_read_as_the_same_model(name: str) -> None:
    model = read(RELEASED[name])
    written = config_json(model)
    assert read(json.loads(json.dumps(written))) == model
    # Where both have a key, they agree, null being as good as what is left out.
    released = RELEASED[name].get("text_config", RELEASED[name])
    both = [key for key in released if released[key] is not None and written.get(key) is not None]
    assert isinstance(written.get("query_pre_attn_scalar", 1), int)
    assert {key: written[key] for key in both} == {key: released[key] for key in both}


def test_what_newer_versions_write_is_read() -> None:
    config = dict(RELEASED["llama3.1-8b"])
    rope = {**config.pop("rope_scaling"), "rope_theta": config.pop("rope_theta")}
    assert read({**config, "rope_parameters": rope}) == read(RELEASED["llama3.1-8b"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model_type": "bert"}, r"(?s)model_type=bert \(config.json\): is no family .* llama"),
        ({"model_type": None}, r"model_type \(config.json\): is missing"),
        ({"hidden_size": None}, r"hidden_size \(config.json\): is missing"),
        ({"intermediate_size": "x"}, r"base_mlp_dim=x \(config.json\): must be a whole number"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu .* only silu, gelu_pytorch_tanh, relu are"),
        ({"attention_bias": True}, "attention_bias=true .* only false"),
        ({"mlp_bias": True}, "mlp_bias=true"),
        ({"quantization_config": {"bits": 4}}, "quantization_config=.*is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "(?s)rope_scaling=longrope .* llama3"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling .*: needs a factor"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling .*: needs a factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0}}, "a factor of at least 1"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "a factor of at least 1"),
        ({"rope_scaling": [1]}, "rope_scaling .*: is no object"),
        ({"layer_types": ["sliding_attention"] * 32}, "layer_types .*: llama2 has other"),
        ({"layer_types": ["full_attention"] * 31}, "layer_types .*: llama2 has other"),
        ({"num_hidden_layers": 10**30}, "must be a whole number, at least 1, and no more than 21"),
        ({"rope_theta": math.inf}, "rope_max_timescale=inf .*: must be a number, above 0, and no"),
        ({"num_key_value_heads": 5}, "base_num_kv_heads .*multiple of kv heads"),
    ],
)
def test_a_model_that_is_not_built_here_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read({**RELEASED["llama3.1-8b"], **change})


@pytest.mark.parametrize(
    ("rope", "want"),
    [
        ({"factor": 4.0}, {"rope_attention_scaling": True, "mscale": 1.0, "rope_truncate": True}),
        ({"factor": 4.0, "attention_factor": 1.0}, {"rope_attention_scaling": False}),
        ({"factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}, {"rope_attention_scaling": False}),
        ({"factor": 4.0, "attention_factor": 1 + 0.07 * math.log(4)}, {"mscale": 0.7}),
        (
            {"factor": 4.0, "beta_fast": 16, "truncate": False},
            {"beta_fast": 16.0, "beta_slow": 1.0},
        ),
        (
            {"factor": 4.0, "original_max_position_embeddings": 32768},
            {"original_max_position_embeddings": 32768},
        ),
    ],
)
def test_yarn_is_read_and_written(rope: dict[str, Any], want: dict[str, Any]) -> None:
    released = RELEASED["qwen2.5-7b"]
    model = read({**released, "rope_scaling": {"type": "yarn", **rope}})
    assert (model.rope_type, model.rope_factor) == ("yarn", 4.0)
    got = {key: getattr(model, key) for key in want}
    assert got == pytest.approx(want)
    again = read(config_json(model))
    assert again.mscale == pytest.approx(model.mscale)
    assert again.model_copy(update={"mscale": model.mscale}) == model


def test_newer_versions_name_the_kinds_of_layers() -> None:
    old = RELEASED["gemma3-27b"]["text_config"]
    new = {key: value for key, value in old.items() if key != "rope_scaling"}
    new["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    new["layer_types"] = (["sliding_attention"] * 5 + ["full_attention"]) * 10
    new["layer_types"] += ["sliding_attention"] * 2
    assert read(new) == read(old) == read(RELEASED["gemma3-27b"])
    with pytest.raises(ConfigError, match="other kinds of layers in other places"):
        read({**new, "layer_types": new["layer_types"][::-1]})
    with pytest.raises(ConfigError, match=r"sliding_window_pattern .*: only 6 is supported"):
        read({**old, "sliding_window_pattern": 4})


@pytest.mark.parametrize(
    "change",
    [
        {"use_qk_norm": True},
        {"mlp_activations": ("relu",)},
        {"sliding_window_size": 5},
        {"final_logits_soft_cap": 5.0},
    ],
    ids=["norms", "plain", "windows", "caps"],
)
def test_a_model_that_hugging_face_does_not_have_is_refused(change: dict[str, Any]) -> None:
    model = read(RELEASED["llama3.1-8b"]).model_copy(update=change)
    with pytest.raises(ConfigError, match=f"{next(iter(change))}.*Hugging Face's [lL]lama"):
        config_json(model)

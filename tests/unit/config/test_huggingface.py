"""config.json to our keys and back, held to what the released models say."""

import json
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


def test_every_released_config_has_its_model_file() -> None:
    assert set(RELEASED) <= {path.stem for path in (config_folder() / "models").glob("*.yml")}


@pytest.mark.parametrize("name", RELEASED)
def test_a_model_file_says_what_the_released_config_says(name: str) -> None:
    assert read(RELEASED[name]) == load([f"model_name={name}"], {}).config.model


@pytest.mark.parametrize("name", RELEASED)
def test_a_written_config_is_read_as_the_same_model(name: str) -> None:
    model = read(RELEASED[name])
    written = config_json(model)
    assert read(json.loads(json.dumps(written))) == model
    # Where both have a key, they agree, null being as good as what is left out.
    released = {key: value for key, value in RELEASED[name].items() if value is not None}
    assert {key: written[key] for key in released if written.get(key) is not None} == {
        key: released[key] for key in released if written.get(key) is not None
    }


def test_what_newer_versions_write_is_read() -> None:
    config = dict(RELEASED["llama3.1-8b"])
    rope = {**config.pop("rope_scaling"), "rope_theta": config.pop("rope_theta")}
    assert read({**config, "rope_parameters": rope}) == read(RELEASED["llama3.1-8b"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model_type": "bert"}, r"model_type=bert \(config.json\): is no family .* llama"),
        ({"model_type": None}, r"model_type \(config.json\): is missing"),
        ({"hidden_size": None}, r"hidden_size \(config.json\): is missing"),
        ({"intermediate_size": "x"}, r"base_mlp_dim=x \(config.json\): must be a whole number"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu .* only silu, gelu_pytorch_tanh, relu are"),
        ({"attention_bias": True}, "attention_bias=true .* only false"),
        ({"mlp_bias": True}, "mlp_bias=true"),
        ({"quantization_config": {"bits": 4}}, "quantization_config=.*is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "(?s)rope_scaling=longrope .* llama3"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling .*: lacks factor"),
        ({"rope_scaling": [1]}, "rope_scaling .*: is no object"),
        ({"num_key_value_heads": 5}, "base_num_kv_heads .*multiple of kv heads"),
    ],
)
def test_a_model_that_is_not_built_here_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read({**RELEASED["llama3.1-8b"], **change})


@pytest.mark.parametrize(
    "change", [{"use_qk_norm": True}, {"mlp_activations": ("relu",)}], ids=["norms", "plain"]
)
def test_a_model_that_hugging_face_does_not_have_is_refused(change: dict[str, Any]) -> None:
    model = read(RELEASED["llama3.1-8b"]).model_copy(update=change)
    with pytest.raises(ConfigError, match=f"{next(iter(change))}.*Hugging Face's llama"):
        config_json(model)

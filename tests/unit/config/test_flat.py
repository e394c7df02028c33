"""A config goes to JSON and back without a change."""

import json

import pytest

from maxtext.config.errors import ConfigError
from maxtext.config.flat import flatten, from_flat
from maxtext.config.keys import keys
from maxtext.config.load import load


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["model_name=llama3.1-405b"],
        ["prompt=", "learning_rate=1", "logical_axis_rules={mlp: []}", "train_data_columns=a,b"],
    ],
)
def test_flat_json_is_the_config_again(argv: list[str]) -> None:
    config = load(argv, {}).config
    again = from_flat(json.loads(json.dumps(flatten(config))))
    assert again == config
    assert hash(again) == hash(config)


def test_flat_has_the_users_names() -> None:
    flat = flatten(load([], {}).config)
    assert set(flat) == set(keys())
    assert flat["base_emb_dim"] == 512
    assert flat["mesh_axes"][0] == "data"
    assert flat["logical_axis_rules"]["mlp"] == ["tensor", "tensor_sequence"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"steps": 0}, r"steps=0 \(stored config\): must be a whole number, at least 1"),
        ({"steps": "5"}, "steps=5 .* must be a whole number"),
        ({"steps": True}, "steps=true .* must be a whole number"),
        ({"steps": 5.0}, "steps=5.0 .* must be a whole number"),
        ({"packing": 1}, "packing=1 .* must be true or false"),
        ({"prompt": None}, "prompt=None .* must be text"),
        ({"mesh_axes": "data"}, "mesh_axes=data .* must be a list"),
        ({"logical_axis_rules": []}, "logical_axis_rules=.* must be a mapping"),
        ({"logical_axis_rules": {"mlp": "tensor"}}, "logical_axis_rules=.* must be"),
        ({"learning_rate": float("nan")}, "learning_rate=nan .* must be a number"),
        ({"stepz": 1}, "stepz=1 .* no such key"),
    ],
)
def test_a_flat_config_that_is_not_one_is_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        from_flat(flatten(load([], {}).config) | change)


def test_a_flat_config_with_a_key_missing_is_refused() -> None:
    flat = flatten(load([], {}).config)
    del flat["steps"]
    with pytest.raises(ConfigError, match="steps: is missing"):
        from_flat(flat)

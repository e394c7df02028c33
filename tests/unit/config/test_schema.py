"""The schema declares each key once, base.yml gives each its default, and sections are strict."""

import pytest
from pydantic import ValidationError

from maxtext.config.keys import RULES, keys, sections
from maxtext.config.load import load
from maxtext.config.sources import file_source
from maxtext.config.upstream_keys import INSTEAD, UPSTREAM
from maxtext.config.yaml_files import base_file, read_file


def test_base_yml_sets_every_key_and_no_other() -> None:
    file = read_file(base_file())
    assert not file_source(file, "default").problems
    assert {entry.name for entry in file.entries} == set(keys())


def test_base_yml_is_in_the_order_of_the_schema() -> None:
    assert [entry.name for entry in read_file(base_file()).entries] == list(keys())


def test_base_yml_is_valid() -> None:
    origins = load([], {}).origins
    assert {origin.level for origin in origins.values()} == {"default"}


def test_every_key_says_what_it_means_and_what_it_takes() -> None:
    for key in keys().values():
        assert key.doc.endswith("."), key.name
        assert key.allowed, key.name


def test_names_of_keys_are_unique() -> None:
    fields = [
        info.alias or name
        for kind in sections().values()
        for name, info in kind.model_fields.items()
    ]
    assert len(fields) == len(set(fields)) == len(keys())


def test_no_key_is_called_missing() -> None:
    assert not set(keys()) & (set(INSTEAD) | UPSTREAM)


def test_what_is_to_be_used_instead_exists() -> None:
    words = {word.strip(",:=()") for text in INSTEAD.values() for word in text.split()}
    named = {word.split("=")[0] for word in words if "_" in word} - {"JAX_PLATFORMS", "HF_TOKEN"}
    assert named <= set(keys())


@pytest.mark.parametrize(
    "change",
    [
        {"emb_dim": "64"},
        {"emb_dim": 64.0},
        {"emb_dim": True},
        {"logits_via_embedding": "true"},
        {"mlp_activations": ["silu"]},
        {"rope_factor": float("inf")},
        {"rope_factor": float("nan")},
        {"no_such_key": 1},
    ],
)
def test_a_section_converts_nothing(change: dict[str, object]) -> None:
    model = load([], {}).config.model
    with pytest.raises(ValidationError):
        type(model).model_validate(model.model_dump() | change)


def test_a_section_is_frozen_and_hashable() -> None:
    config = load([], {}).config
    with pytest.raises(ValidationError, match="frozen"):
        config.model.emb_dim = 1
    assert hash(config) == hash(load([], {}).config)


def test_bounds_are_put_in_words() -> None:
    allowed = {name: key.allowed for name, key in keys().items()}
    assert allowed["steps"] == "a whole number, at least 1"
    assert allowed["num_epoch"] == "a whole number, at least -1"
    assert allowed["warmup_steps_fraction"] == "a number, at least 0.0 and at most 1.0"
    assert allowed["decode_sampling_nucleus_p"] == "a number, above 0.0 and at most 1.0"
    assert allowed["mu_dtype"] == "one of '' (empty), float32, bfloat16"
    assert allowed[RULES].startswith("a mapping of logical axes")

"""What users type wrong in conversion: one clear error each, and nothing is written."""

import json
from pathlib import Path

import pytest

from bad_input import Bad, assert_refused
from maxtext import convert

NO_WEIGHTS = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 8}
NO_WEIGHTS |= {"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8}
CONFIG = json.dumps(NO_WEIGHTS | {"max_position_embeddings": 8})
BAD_CONVERSIONS = {
    "no conversion": Bad("from_torch a b", ("from_torch is no conversion", "from_gguf")),
    "no words": Bad("from_hf a", ("from_hf needs what to read",)),
    "too many words": Bad("to_hf a b c", ("c: to_hf takes two words",)),
    "a folder that is not there": Bad("from_hf a/b/c out", ("a/b/c: there is no such folder",)),
    "a file for a folder": Bad("from_hf a out", ("a is a file",), files={"a": ""}),
    "a folder to write that is there": Bad("from_hf gone a", ("a exists already",), {"a/b": ""}),
    "a folder to write that is a file": Bad("to_hf gone a", ("a exists already",), {"a": ""}),
    "a folder to write below a file": Bad(
        "from_gguf gone a/b", ("a/b: ", "a is not a folder; name a folder"), {"a": ""}
    ),
    "a folder to write in nobody's home": Bad(
        "from_hf gone ~no-such-user/x", ("~no-such-user is nobody's home folder",)
    ),
    "a name to write that is too long": Bad(
        f"from_hf gone {'a' * 256}", ("a name in it is too long",)
    ),
    "no config": Bad("from_hf a out", ("a/config.json: there is no such",), files={"a/b": ""}),
    "half a config": Bad("from_hf a out", ("a/config.json: is not JSON",), {"a/config.json": "{"}),
    "a config that is a list": Bad(
        "from_hf a out", ("a/config.json: is no JSON object",), {"a/config.json": "[]"}
    ),
    "an unknown family": Bad(
        "from_hf a out",
        ("model_type=mamba", "there are llama", "qwen3"),
        {"a/config.json": '{"model_type": "mamba"}'},
    ),
    "no weights": Bad("from_hf a out", ("a holds no safetensors",), {"a/config.json": CONFIG}),
    "pickled weights": Bad(
        "from_hf a out",
        ("pytorch_model.bin is pickled", "safetensors"),
        {"a/config.json": CONFIG, "a/pytorch_model.bin": ""},
    ),
    "weights that are cut short": Bad(
        "from_hf a out",
        ("a/model.safetensors is cut short",),
        {"a/config.json": CONFIG, "a/model.safetensors": "1234567"},
    ),
    "an index of files that are not there": Bad(
        "from_hf a out",
        ("names b.safetensors, which is not there",),
        {
            "a/config.json": CONFIG,
            "a/model.safetensors.index.json": '{"weight_map": {"x": "b.safetensors"}}',
        },
    ),
    "an index that names other folders": Bad(
        "from_hf a out",
        ("has no weight_map",),
        {
            "a/config.json": CONFIG,
            "a/model.safetensors.index.json": '{"weight_map": {"x": "../b.safetensors"}}',
        },
    ),
    "no GGUF file": Bad("from_gguf a out", ("a cannot be read: No such file",)),
    "a file of something else": Bad("from_gguf a out", ("or no GGUF file",), {"a": "x" * 99}),
    "no checkpoint": Bad("to_hf a out", ("checkpoint=a: no such folder",)),
    "no upstream checkpoint": Bad(
        "from_maxtext a out model_name=qwen3-0.6b", ("a: no checkpoint of upstream",)
    ),
    "an upstream checkpoint of no model": Bad(
        "from_maxtext a out model_name=qwen", ("model_name=qwen", "is no file of configs/models")
    ),
}


@pytest.mark.parametrize("bad", BAD_CONVERSIONS.values(), ids=BAD_CONVERSIONS)
def test_a_bad_input_to_conversion_is_one_clear_error(
    bad: Bad, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(bad, convert.main, folder, capsys)

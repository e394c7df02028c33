import re
from pathlib import Path

import pytest
import yaml

from maxtext.config.load import load
from maxtext.config.schema import ModelConfig
from maxtext.models.decoder import model_params
from maxtext.models.registry import architecture
from maxtext.parallel.params import count_params

CONFIGS = Path(__file__).parents[3] / "configs"

# Elements of all tensors in the released safetensors files, tied heads counted once.
RELEASED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama3.3-70b": 70_553_706_496,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
}

# theta, eps, context, factor of the long wavelengths; no count of parameters shows these.
FUNCTIONS = {
    "llama2": (1e4, 1e-5, 4096, None),
    "llama3": (5e5, 1e-5, 8192, None),
    "llama3.1": (5e5, 1e-5, 131072, 8.0),
    "llama3.2": (5e5, 1e-5, 131072, 32.0),
    "llama3.3": (5e5, 1e-5, 131072, 8.0),
    "qwen3": (1e6, 1e-6, 40960, None),
}


def model_keys() -> set[str]:
    return {field.alias or name for name, field in ModelConfig.model_fields.items()}


def text_of(name: str) -> str:
    return (CONFIGS / "models" / f"{name}.yml").read_text()


def model_of(name: str) -> ModelConfig:
    return load([f"model_name={name}"], {}).config.model


def test_every_model_file_has_its_released_count() -> None:
    assert {path.stem for path in (CONFIGS / "models").glob("*.yml")} == set(RELEASED)


@pytest.mark.parametrize("name", RELEASED)
def test_the_spec_tree_has_as_many_parameters_as_the_release(name: str) -> None:
    specs = model_params(architecture(model_of(name), weight_dtype="bfloat16"))
    assert count_params(specs) == RELEASED[name]


@pytest.mark.parametrize("name", RELEASED)
def test_the_comment_names_source_and_count(name: str) -> None:
    source, count = text_of(name).splitlines()[:2]
    assert re.fullmatch(r"# Source: config\.json of [\w./-]+ on Hugging Face\.", source)
    assert count == f"# {RELEASED[name]:,} parameters."


@pytest.mark.parametrize("name", RELEASED)
def test_a_model_file_sets_each_model_key_that_it_depends_on_and_no_other(name: str) -> None:
    given = yaml.safe_load(text_of(name))
    scaling = {"rope_factor", "rope_low_freq_factor", "rope_high_freq_factor"}
    scaling |= {"original_max_position_embeddings"}
    unused = set() if given["rope_type"] == "llama3.1" else scaling
    assert set(given) == model_keys() - {"dense_init_scale"} - unused


@pytest.mark.parametrize("name", RELEASED)
def test_positions_and_norms_are_those_of_the_release(name: str) -> None:
    model = model_of(name)
    theta, eps, context, factor = FUNCTIONS[name.rsplit("-", 1)[0]]
    assert model.rope_max_timescale == theta
    assert model.normalization_layer_epsilon == eps
    assert model.max_position_embeddings == context
    assert (model.rope_factor if model.rope_type == "llama3.1" else None) == factor
    assert model.use_qk_norm == (model.decoder_block == "qwen3")

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
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.2": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    # The language model alone: released files hold 416,866,032 of a vision tower and what joins
    # the two besides, all but the 1B's.
    "gemma3-1b": 999_885_952,
    "gemma3-4b": 4_300_079_472 - 416_866_032 - 1152 * (2560 + 1),
    "gemma3-12b": 12_187_325_040 - 416_866_032 - 1152 * (3840 + 1),
    "gemma3-27b": 27_432_406_640 - 416_866_032 - 1152 * (5376 + 1),
}

# theta, eps, context, factor of the long wavelengths; no count of parameters shows these. The
# longest name that a file's begins with counts.
FUNCTIONS = {
    "llama2": (1e4, 1e-5, 4096, None),
    "llama3": (5e5, 1e-5, 8192, None),
    "llama3.1": (5e5, 1e-5, 131072, 8.0),
    "llama3.2": (5e5, 1e-5, 131072, 32.0),
    "llama3.3": (5e5, 1e-5, 131072, 8.0),
    "qwen3": (1e6, 1e-6, 40960, None),
    "mistral-7b-v0.1": (1e4, 1e-5, 32768, None),
    "mistral-7b": (1e6, 1e-5, 32768, None),
    "mistral-nemo": (1e6, 1e-5, 131072, None),
    "mistral-small": (1e8, 1e-5, 32768, None),
    "qwen2.5": (1e6, 1e-5, 131072, None),
    "qwen2.5-0.5b": (1e6, 1e-6, 32768, None),
    "qwen2.5-1.5b": (1e6, 1e-6, 131072, None),
    "qwen2.5-3b": (1e6, 1e-6, 32768, None),
    "qwen2.5-7b": (1e6, 1e-6, 131072, None),
    "gemma2": (1e4, 1e-6, 8192, None),
    "gemma3": (1e6, 1e-6, 131072, 8.0),
    "gemma3-1b": (1e6, 1e-6, 32768, None),
}

# Window, scale of the scores, caps of scores and logits; nothing where there is neither.
ATTENTION = {
    "mistral-7b-v0.1": (4096, 128**-0.5, 0.0, 0.0),
    "gemma2-2b": (4096, 256**-0.5, 50.0, 30.0),
    "gemma2-9b": (4096, 256**-0.5, 50.0, 30.0),
    "gemma2-27b": (4096, (4608 / 32) ** -0.5, 50.0, 30.0),
    "gemma3-1b": (512, 256**-0.5, 0.0, 0.0),
    "gemma3-4b": (1024, 256**-0.5, 0.0, 0.0),
    "gemma3-12b": (1024, 256**-0.5, 0.0, 0.0),
    "gemma3-27b": (1024, (5376 / 32) ** -0.5, 0.0, 0.0),
}

# What a file may leave out, and what it then means: none of it. base.yml must say so too.
NEUTRAL = {
    "attention_bias": False,
    "query_pre_attn_scalar": 0.0,
    "sliding_window_size": 0,
    "attn_logits_soft_cap": 0.0,
    "final_logits_soft_cap": 0.0,
    "local_rope_max_timescale": -1.0,
}
ROPE = {
    "linear": {"rope_linear_scaling_factor"},
    "llama3.1": {
        "rope_factor",
        "rope_low_freq_factor",
        "rope_high_freq_factor",
        "original_max_position_embeddings",
    },
    "yarn": {
        "rope_factor",
        "beta_fast",
        "beta_slow",
        "rope_truncate",
        "rope_attention_scaling",
        "mscale",
        "original_max_position_embeddings",
    },
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
    used = ROPE.get(given["rope_type"], set())
    unused = set().union(*ROPE.values()) - used
    always = model_keys() - {"dense_init_scale"} - unused - set(NEUTRAL)
    assert set(given) - set(NEUTRAL) == always
    assert [key for key, value in NEUTRAL.items() if given.get(key) == value] == []


def test_what_a_model_file_may_leave_out_is_nothing() -> None:
    base = yaml.safe_load((CONFIGS / "base.yml").read_text())
    assert {key: base[key] for key in NEUTRAL} == NEUTRAL


@pytest.mark.parametrize("name", RELEASED)
def test_positions_and_norms_are_those_of_the_release(name: str) -> None:
    model = model_of(name)
    theta, eps, context, factor = FUNCTIONS[max(filter(name.startswith, FUNCTIONS), key=len)]
    assert model.rope_max_timescale == theta
    assert model.normalization_layer_epsilon == eps
    assert model.max_position_embeddings == context
    factors = {"linear": model.rope_linear_scaling_factor, "llama3.1": model.rope_factor}
    assert factors.get(model.rope_type) == factor
    assert model.use_qk_norm == (model.decoder_block in ("qwen3", "gemma3"))
    assert model.attention_bias == (model.decoder_block == "qwen2")


@pytest.mark.parametrize("name", RELEASED)
def test_windows_scales_and_caps_are_those_of_the_release(name: str) -> None:
    model = model_of(name)
    window, scale, cap, last_cap = ATTENTION.get(name, (0, model.head_dim**-0.5, 0.0, 0.0))
    layers = architecture(model, weight_dtype="bfloat16").layers
    period = {"gemma2": 2, "gemma3": 6}.get(model.decoder_block, 0)
    for place, kind in enumerate(layers, start=1):
        everything = not window or (period and place % period == 0)
        assert kind.pattern.window == (None if everything else window)
        assert kind.pattern.scale == scale
        assert kind.pattern.soft_cap == (cap or None)
        local = model.decoder_block == "gemma3" and not everything
        assert kind.rope.theta == (1e4 if local else model.rope_max_timescale)
        assert (kind.rope.scaling is None) == (local or model.rope_type == "default")
    assert len(layers) == model.num_decoder_layers
    assert model.final_logits_soft_cap == last_cap
    gemma = model.decoder_block.startswith("gemma")
    assert model.mlp_activations == (("gelu" if gemma else "silu"), "linear")

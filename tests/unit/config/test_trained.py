"""Where a trained model lies, and what its files say of it."""

import json
from pathlib import Path

import pytest

from maxtext.config.errors import ConfigError
from maxtext.config.huggingface_files import adds_bos
from maxtext.config.load import load
from maxtext.config.trained import find_model, model_source, step_folder

LLAMA = {
    "model_type": "llama",
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


@pytest.fixture
def downloaded(folder: Path) -> Path:
    """A Hugging Face folder without weights."""
    made = folder / "downloaded"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(LLAMA))
    (made / "tokenizer.json").write_text("{}")
    (made / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    return made


def test_the_newest_step_is_the_largest_number(tmp_path: Path) -> None:
    for name in ("9", "10", "2", "11.orbax-checkpoint-tmp", "set_aside"):
        (tmp_path / "checkpoints" / name / "config").mkdir(parents=True)
    newest = tmp_path / "checkpoints" / "10"
    assert step_folder(str(tmp_path)) == newest
    assert step_folder(str(tmp_path / "checkpoints")) == newest
    assert step_folder(str(newest)) == newest
    assert step_folder(str(tmp_path / "gone")) is None
    assert step_folder(str(newest / "config")) is None


def test_a_folder_of_steps_may_have_a_number_for_its_name(tmp_path: Path) -> None:
    (tmp_path / "2025" / "checkpoints" / "3").mkdir(parents=True)
    assert step_folder(str(tmp_path / "2025")) == tmp_path / "2025" / "checkpoints" / "3"


def test_a_folder_with_a_config_json_is_a_model(downloaded: Path, folder: Path) -> None:
    assert find_model(str(downloaded)) == downloaded
    assert find_model(str(folder)) is None
    (folder / "run" / "3" / "config").mkdir(parents=True)
    assert find_model(str(folder / "run")) == folder / "run" / "3"


@pytest.mark.parametrize("training", [True, False])
def test_model_and_tokenizer_come_from_a_hugging_face_folder(
    training: bool, downloaded: Path
) -> None:
    argv = [f"load_parameters_path={downloaded}"]
    loaded = load(argv, {}, model_from_checkpoint=not training)
    model, data = loaded.config.model, loaded.config.data
    assert (model.emb_dim, model.head_dim, model.logits_via_embedding) == (96, 16, True)
    assert model.normalization_layer_epsilon == 1e-6
    assert (data.tokenizer_type, data.tokenizer_path) == ("huggingface", str(downloaded))
    assert data.add_bos is False
    assert str(loaded.origins["base_emb_dim"]) == str(downloaded / "config.json")


def test_a_run_may_go_on_with_another_tokenizer_but_not_with_another_model(
    downloaded: Path,
) -> None:
    argv = [f"load_parameters_path={downloaded}", "tokenizer_type=byte", "add_bos=true"]
    assert load(argv, {}).config.data.tokenizer_type == "byte"
    with pytest.raises(ConfigError, match=r"base_emb_dim=64 .* contradicts 96 of .*config.json"):
        load([*argv, "base_emb_dim=64"], {})
    with pytest.raises(ConfigError, match=r"base_num_query_heads=32 .*contradicts 6"):
        load([*argv, "model_name=llama3.2-1b"], {})
    argv += ["base_emb_dim=64", "override_model_config=true"]
    assert load(argv, {}).config.model.emb_dim == 64


def test_the_files_beside_converted_weights_move_with_them(folder: Path) -> None:
    step = folder / "converted" / "0"
    (step / "config").mkdir(parents=True)
    (step / "huggingface").mkdir()
    stored = {"base_emb_dim": 96, "tokenizer_type": "huggingface", "max_target_length": 7}
    (step / "config" / "metadata").write_text(json.dumps(stored))
    moved = folder / "moved"
    step.parent.rename(moved)
    found = find_model(str(moved))
    assert found is not None
    settings = model_source(found).settings
    assert settings["tokenizer_path"].value == str(moved / "0" / "huggingface")
    assert settings["max_target_length"].value == 7
    assert "max_target_length" not in model_source(found, training=True).settings


@pytest.mark.parametrize(
    ("tokenizer", "config", "adds"),
    [
        ({}, {"add_bos_token": True}, True),
        ({}, {}, False),
        ({"post_processor": {"single": [{"SpecialToken": {"id": "<s>"}}]}}, {}, True),
        ({"post_processor": {"single": [{"Sequence": {"id": "A"}}]}}, {}, False),
        (
            {"post_processor": {"processors": [{}, {"single": [{"SpecialToken": {}}]}]}},
            {"add_bos_token": None},
            True,
        ),
        (
            {"post_processor": {"single": [{"SpecialToken": {"id": "<s>"}}]}},
            {"add_bos_token": False},
            False,
        ),
    ],
)
def test_a_tokenizer_says_whether_it_adds_bos(
    tokenizer: dict[str, object], config: dict[str, object], adds: bool, folder: Path
) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert adds_bos(folder) is adds

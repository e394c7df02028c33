"""Which tokens end a text: what the files beside the tokenizer say, not the model's YAML."""

import json
from pathlib import Path
from typing import Any

import pytest

from maxtext.config.load import load
from maxtext.data.tokenizer import ByteTokenizer
from maxtext.decoding.encoding import load_encoder

RELEASED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "config" / "released.json").read_text()
)
TOKENIZER = ByteTokenizer()


def ending(folder: Path, *argv: str) -> tuple[int, ...]:
    (folder / "tokenizer.json").touch()
    given = ["tokenizer_type=huggingface", f"tokenizer_path={folder}", *argv]
    return load_encoder(load(given, {}).config, TOKENIZER).eos_ids


@pytest.mark.parametrize("name", RELEASED)
def test_a_text_of_a_released_model_ends_where_its_config_says(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(RELEASED[name]))
    ids = RELEASED[name]["eos_token_id"]
    want = {TOKENIZER.eos_id, *(ids if isinstance(ids, list) else [ids])}
    assert ending(tmp_path, f"model_name={name}") == tuple(sorted(want))


def test_a_generation_config_goes_before_the_models(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 8]}')
    assert ending(tmp_path) == (8, 9, TOKENIZER.eos_id)
    assert ending(tmp_path, "decode_eos_ids=[3]") == (3,)
    (tmp_path / "generation_config.json").write_text("{}")
    assert ending(tmp_path) == (TOKENIZER.eos_id,)

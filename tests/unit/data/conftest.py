"""A config and files for data tests."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from maxtext.config.schema_training import DataConfig

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def make_config() -> Callable[..., DataConfig]:
    base = yaml.safe_load((ROOT / "configs" / "base.yml").read_text())
    names = [field.alias or name for name, field in DataConfig.model_fields.items()]

    def make(**keys: object) -> DataConfig:
        values = {name: base[name] for name in names} | keys
        lists = {name: tuple(one) for name, one in values.items() if isinstance(one, list)}
        return DataConfig(**(values | lists))

    return make


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., Path]:
    def write(texts: list[str], name: str = "documents.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return path

    return write

"""The model that somebody trained: what the files beside its weights say of it."""

import json
import os
from pathlib import Path
from typing import cast

from maxtext.config import architecture
from maxtext.config.errors import ConfigError, Origin, Problem
from maxtext.config.flat import build, flat_source
from maxtext.config.huggingface import huggingface_source
from maxtext.config.huggingface_files import CONFIG
from maxtext.config.keys import keys
from maxtext.config.schema import ModelConfig
from maxtext.config.sources import Setting, Source, file_source
from maxtext.config.values import Json
from maxtext.config.yaml_files import base_file, read_file

MODEL = "model"
# Files of a Hugging Face folder that a converted checkpoint keeps beside its weights.
SIDE_FILES = "huggingface"
_TOKENIZER = ("tokenizer_type", "tokenizer_path", "add_bos")
_LENGTH = "max_target_length"


def find_model(path: str) -> Path | None:
    """The step or the Hugging Face folder that a path means; None if it is neither.

    Reads names only.
    """
    place = Path(os.path.expanduser(path))
    step = step_folder(path)
    return place if step is None and is_huggingface(place) else step


def is_huggingface(folder: Path) -> bool:
    """Whether a folder is a model as Hugging Face keeps it, rather than a checkpoint."""
    return os.path.isfile(folder / CONFIG)


def step_folder(path: str) -> Path | None:
    """The step that a checkpoint path means: itself, or the newest of a run; None if there is none.

    Reads names only.
    """
    place = os.path.expanduser(path)
    if Path(place).name.isdecimal() and os.path.isdir(os.path.join(place, "config")):
        return Path(place)
    for folder in (place, os.path.join(place, "checkpoints")):
        if os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK):
            steps = [one for one in Path(folder).iterdir() if one.name.isdecimal() and one.is_dir()]
            if steps:
                return max(steps, key=lambda step: int(step.name))
    return None


def model_source(folder: Path, *, training: bool = False) -> Source:
    """What is stored with weights about the model and its tokenizer.

    Args:
        folder: As `find_model` finds it.
        training: For a run that starts from the weights: rows may have another length.

    Raises:
        ConfigError: It is missing or cannot be read.
    """
    source = huggingface_source(folder) if is_huggingface(folder) else _stored(folder)
    extras = _TOKENIZER if training else (*_TOKENIZER, _LENGTH)
    wanted = {key.name for key in keys().values() if key.section == MODEL} | {*extras}
    kept = {name: setting for name, setting in source.settings.items() if name in wanted}
    return Source(kept, source.problems)


def read_model(source: Source) -> ModelConfig:
    """The model that a source describes, the defaults where it says nothing.

    Raises:
        ConfigError: There is no such model.
    """
    base = file_source(read_file(base_file()), "default")
    settings = source.over(base).settings
    config, refused = build(settings)
    problems = [*source.problems, *refused]
    if config is None or problems:
        raise ConfigError(problems)
    problems = [
        Problem(clash.keys[0], clash.message, origin=settings[clash.keys[0]].origin)
        for clash in architecture.model_clashes(config.model)
    ]
    if problems:
        raise ConfigError(problems)
    return config.model


def _stored(folder: Path) -> Source:
    """The config in a step."""
    file = folder / "config" / "metadata"
    origin = Origin("checkpoint", str(file))
    try:
        flat = json.loads(file.read_text("utf-8"))
    except OSError as error:
        message = f"the config of the checkpoint cannot be read: {error.strerror or error}"
        raise ConfigError([Problem("", message, origin=origin)]) from error
    except (ValueError, RecursionError) as error:
        message = "the config of the checkpoint is damaged: it is not JSON"
        raise ConfigError([Problem("", message, origin=origin)]) from error
    if not isinstance(flat, dict):
        message = "the config of the checkpoint is damaged: it is no mapping"
        raise ConfigError([Problem("", message, origin=origin)])
    source = flat_source(cast(dict[str, Json], flat), origin)
    beside = str(folder / SIDE_FILES)
    if not os.path.isdir(beside):
        return source
    # Whatever was written at conversion, the folder may have been moved since.
    path = Setting("tokenizer_path", beside, beside, origin)
    return Source({**source.settings, "tokenizer_path": path}, source.problems)

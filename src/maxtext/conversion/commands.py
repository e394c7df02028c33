"""What `python -m maxtext.convert` does: each reads a model, and writes one whole or not at all."""

import contextlib
import math
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from maxtext.checkpoint.folders import whole_folder
from maxtext.checkpoint.pieces import WeightsReader, WeightsWriter
from maxtext.config.flat import flat_source
from maxtext.config.huggingface import huggingface_source, model_settings
from maxtext.config.huggingface_files import Object, adds_bos
from maxtext.config.load import load
from maxtext.config.schema import ModelConfig
from maxtext.config.sources import Source, arguments, command_line_source, environment_source
from maxtext.config.trained import SIDE_FILES, model_source, read_model
from maxtext.conversion.byte_tokenizer import write_byte_tokenizer
from maxtext.conversion.errors import ConversionError
from maxtext.conversion.gguf import GGUFModel
from maxtext.conversion.hub import local_folder
from maxtext.conversion.huggingface import HuggingFaceWeights, Weights, planned, their_tensors
from maxtext.conversion.safetensors import open_folder
from maxtext.conversion.safetensors_writer import FolderWriter
from maxtext.conversion.side_files import copy_side_files, write_config
from maxtext.conversion.upstream import UpstreamWeights

_WRITTEN_BY_RUNS = ("enable_checkpointing", "enable_tensorboard")


def from_hf(source: str, out: Path) -> None:
    """A Hugging Face folder, or a model of the hub, to a checkpoint.

    Raises:
        ConversionError: It is damaged or does not fit its config, or nothing can be written.
        ConfigError: Its config.json is of a model that is not built here.
    """
    folder = local_folder(source)
    model = read_model(huggingface_source(folder))
    weights = HuggingFaceWeights(model, open_folder(folder), where=source)
    with _made_whole(out) as made:
        side = _side_folder(made)
        copy_side_files(folder, side)
        _write(made, weights, model, tokenizer=_huggingface_tokenizer(side))


def from_gguf(source: str, out: Path) -> None:
    """A GGUF file to a checkpoint in float32, with its tokenizer and chat template.

    Raises:
        ConversionError: It is damaged, or of a kind that is not read, or nothing can be written.
        ConfigError: It is of a model that is not built here.
    """
    gguf = GGUFModel(source)
    model = read_model(flat_source(model_settings(gguf.config, gguf.origin), gguf.origin))
    weights = HuggingFaceWeights(model, gguf.tensors(model), where=source)
    with _made_whole(out) as made:
        side = _side_folder(made)
        gguf.write_side_files(side)
        _write(made, weights, model, tokenizer=_huggingface_tokenizer(side))


def from_maxtext(source: str, out: Path, argv: Sequence[str]) -> None:
    """A checkpoint of upstream MaxText's to one of ours.

    Args:
        source: Its folder.
        out: Ours.
        argv: The model, and the tokenizer where there is one, as for `maxtext.train`; upstream
            stores neither.

    Raises:
        ConversionError: It is damaged or of another model, or nothing can be written.
        ConfigError: The model's keys are wrong.
    """
    given = command_line_source(arguments(argv)).settings, environment_source(os.environ).settings
    unwritten = (f"{key}=false" for key in _WRITTEN_BY_RUNS if not any(key in one for one in given))
    config = load([*argv, *unwritten], os.environ).config
    weights = UpstreamWeights(Path(os.path.expanduser(source)), config.model)
    with _made_whole(out) as made:
        tokenizer: Object = {"tokenizer_type": config.data.tokenizer_type}
        if config.data.tokenizer_type == "huggingface":
            side = _side_folder(made)
            copy_side_files(Path(os.path.expanduser(config.data.tokenizer_path)), side)
            tokenizer = _huggingface_tokenizer(side)
        _write(made, weights, config.model, tokenizer=tokenizer)


def to_hf(source: str, out: Path) -> None:
    """A checkpoint's weights to a Hugging Face folder.

    Raises:
        CheckpointError: There is no checkpoint, or it is damaged.
        ConversionError: Nothing can be written.
        ConfigError: Hugging Face has no such model.
    """
    weights = WeightsReader(source, "checkpoint")
    stored = model_source(weights.folder)
    model = read_model(stored)
    tensors = planned(model, weights)
    with _made_whole(out) as made:
        writer = FolderWriter(made, tensors)
        with contextlib.closing(writer), _progress(weights) as bar:
            for name, numbers in their_tensors(model, weights):
                writer.write(name, numbers)
                bar.update(numbers.nbytes)
            writer.finish()
        _write_tokenizer(made, stored)
        write_config(made, model, dtypes={str(one.dtype) for one in tensors.values()})


@contextlib.contextmanager
def _made_whole(out: Path) -> Generator[Path]:
    """A folder that gets the name `out` when the block ends well, and is deleted if not.

    Raises:
        ConversionError: Something in the block cannot be read or written.
    """
    partial = f".{out.name}.{os.getpid()}.unfinished"
    try:
        with whole_folder(out, partial=partial) as made:
            yield made
    except OSError as error:
        file = str(error.filename or out)
        where = out if partial in file else file
        raise ConversionError(f"{where}: {error.strerror or error}") from error


def _write(folder: Path, weights: Weights, model: ModelConfig, *, tokenizer: Object) -> None:
    """Writes the weights, and the config that goes with them, as step 0."""
    writer = WeightsWriter(folder / "0")
    with contextlib.closing(writer), _progress(weights) as bar:
        for name, leaf in weights.leaves.items():
            writer.add(name, leaf, stacked=name.startswith("decoder/layers/"))
            at = 0
            for piece in weights.pieces(name):
                writer.write(name, piece, at=at)
                at += len(piece)
                bar.update(piece.nbytes)
        writer.finish({**model.model_dump(mode="json", by_alias=True), **tokenizer})


def _write_tokenizer(folder: Path, stored: Source) -> None:
    """Writes the files of the tokenizer that is stored with weights, where it is known."""
    kind, path, add_bos = (
        stored.settings.get(key) for key in ("tokenizer_type", "tokenizer_path", "add_bos")
    )
    if kind is not None and kind.value == "byte":
        write_byte_tokenizer(folder, add_bos=add_bos is None or add_bos.value is True)
    elif path is not None:
        copy_side_files(Path(os.path.expanduser(path.text)), folder)


def _side_folder(folder: Path) -> Path:
    side = folder / "0" / SIDE_FILES
    side.mkdir(parents=True)
    return side


def _huggingface_tokenizer(side: Path) -> Object:
    return {"tokenizer_type": "huggingface", "add_bos": adds_bos(side)}


def _progress(weights: Weights) -> Any:
    total = sum(math.prod(one.shape) * one.dtype.itemsize for one in weights.leaves.values())
    return tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, disable=None)

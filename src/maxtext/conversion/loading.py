"""Weights that a run starts from, from a checkpoint or from a Hugging Face folder."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from maxtext.checkpoint.loading import load_parameters
from maxtext.config.schema import ModelConfig
from maxtext.config.trained import find_model, is_huggingface
from maxtext.conversion.errors import ConversionError
from maxtext.conversion.huggingface import HuggingFaceWeights, Weights
from maxtext.conversion.safetensors import open_folder
from maxtext.parallel.params import named_leaves


def load_weights[T](path: str | Path, target: T, *, model: ModelConfig) -> T:
    """The weights that `load_parameters_path` means, on the devices.

    Args:
        path: A checkpoint, as `load_parameters` takes it, or a Hugging Face folder.
        target: Weights as a tree of `jax.ShapeDtypeStruct` with shardings on any mesh. Those of
            float32 may be read from 16 bits.
        model: What they are weights of.

    Raises:
        CheckpointError: As `load_parameters`.
        ConversionError: The folder's files are damaged, or do not fit the model.
    """
    found = find_model(str(path))
    if found is None or not is_huggingface(found):
        return load_parameters(path, target)
    try:
        weights = HuggingFaceWeights(model, open_folder(found), where=str(path))
        return _placed(weights, target)
    except OSError as error:
        name = error.filename or found
        raise ConversionError(f"{name} cannot be read: {error.strerror or error}") from error


def _placed[T](weights: Weights, target: T) -> T:
    """The weights where the target has them, one array after another."""
    wanted: dict[str, Any] = named_leaves(target)
    for name, leaf in wanted.items():
        has = weights.leaves[name].dtype
        assert weights.leaves[name].shape == leaf.shape, name
        if has != leaf.dtype and not (leaf.dtype == np.float32 and has.itemsize == 2):
            raise ConversionError(
                f"{name} is {has} and weight_dtype={leaf.dtype} would round it; "
                f"weight_dtype={has} takes it as it is"
            )
    leaves = [_array(weights, name, leaf) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(target), leaves)


def _array(weights: Weights, name: str, wanted: jax.ShapeDtypeStruct) -> jax.Array:
    sharding = wanted.sharding
    assert sharding is not None, "a target needs shardings"
    places = sharding.addressable_devices_indices_map(wanted.shape)
    indices = {
        device: tuple(slice(*one.indices(n)) for one, n in zip(index, wanted.shape, strict=True))
        for device, index in places.items()
        if index is not None
    }
    shape = sharding.shard_shape(wanted.shape)
    shards = {str(index): (index, np.empty(shape, wanted.dtype)) for index in indices.values()}
    at = 0
    for piece in weights.pieces(name):
        for index, shard in shards.values():
            first, end = max(at, index[0].start), min(at + len(piece), index[0].stop)
            if first < end:
                part = piece[(slice(first - at, end - at), *index[1:])]
                shard[first - index[0].start : end - index[0].start] = part
        at += len(piece)
    arrays = [
        # A copy, as memory that JAX does not own cannot be donated.
        jax.device_put(shards[str(index)][1], device, may_alias=False)
        for device, index in indices.items()
    ]
    return jax.make_array_from_single_device_arrays(wanted.shape, sharding, arrays)

"""Checkpoints of upstream MaxText: Orbax, layers scanned on the second dim or not at all.

Source: AI-Hypercomputer/maxtext, src/MaxText/layers/attentions.py and
    utils/ckpt_conversion/utils/param_mapping.py, read in November 2026.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from maxtext.checkpoint.errors import brief
from maxtext.checkpoint.folders import list_steps
from maxtext.checkpoint.pieces import Leaf
from maxtext.config.schema import ModelConfig
from maxtext.conversion.errors import ConversionError, listed
from maxtext.conversion.huggingface import Place, places

# Families whose layers upstream lays out as ours; in the first two the query's kernel holds the
# scale of attention.
_FAMILIES = ("llama2", "mistral", "qwen2", "qwen3")
_SCALED = _FAMILIES[:2]
_FUSED = {"self_attention/qkv_proj": "fused_qkv", "mlp/wi": "fused_mlp"}
_METADATA = "_METADATA"
_ITEMS = "items"
_PREFIX = "params/params/"
_SCANNED, _LAYER = "decoder/layers/", "decoder/layers_{layer}/"


class UpstreamWeights:
    """The weights of an upstream checkpoint as ours.

    Args:
        folder: A run's `checkpoints`, a step, or its `items`.
        model: What they have to be.

    Raises:
        ConversionError: There is no checkpoint, it is of a family that is not read, or a weight is
            missing or of another shape.
    """

    def __init__(self, folder: Path, model: ModelConfig) -> None:
        if model.decoder_block not in _FAMILIES:
            raise ConversionError(
                f"upstream checkpoints of decoder_block={model.decoder_block} are not read; those "
                f"of {', '.join(_FAMILIES)} are; convert the Hugging Face folder: from_hf"
            )
        self._folder = _items(folder)
        self._model = model
        self._places = places(model)
        names, self._zarr3 = _names(self._folder)
        _refuse_fused(names, folder)
        self._ocdbt = (self._folder / "manifest.ocdbt").exists()
        self._context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
        self._scanned = any(name.startswith(_PREFIX + _SCANNED) for name in names)
        self._stores: dict[str, ts.TensorStore] = {}
        self.leaves: dict[str, Leaf] = {}
        lines: list[str] = []
        for name, place in self._places.items():
            lines += self._open(name, place, names)
        theirs = {name for name in names if name.startswith(_PREFIX)}
        lines += [f"{name} is in no such model" for name in sorted(theirs - set(self._stores))]
        if lines:
            raise ConversionError(f"{folder} is not of this model:{listed(lines)}")

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """The rows of one weight: layer by layer, or all of what is not stacked."""
        place = self._places[name]
        for theirs in self._names_of(name, place):
            array = self._read(theirs)
            if not place.entry.stacked:
                yield array
            elif self._scanned:
                for layer in range(place.shape[0]):
                    yield self._ours(name, place, array[:, layer])[None]
            else:
                yield self._ours(name, place, array)[None]

    def _names_of(self, name: str, place: Place) -> list[str]:
        if not place.entry.stacked or self._scanned:
            return [_PREFIX + name]
        rest = name.removeprefix(_SCANNED)
        layers = range(place.shape[0])
        return [_PREFIX + _LAYER.format(layer=layer) + rest for layer in layers]

    def _open(self, name: str, place: Place, names: set[str]) -> Iterator[str]:
        """Opens the arrays of a weight; what is wrong with them."""
        shape = place.row_shape
        if place.entry.stacked and self._scanned:
            shape = (shape[0], place.shape[0], *shape[1:])
        for theirs in self._names_of(name, place):
            if theirs not in names:
                yield f"{theirs} is missing, it should be {list(shape)}"
                continue
            try:
                store = ts.open(self._spec(theirs), read=True, context=self._context).result()
            except ValueError as error:
                yield f"{theirs} cannot be read: {brief(error)}"
                continue
            self._stores[theirs] = store
            self.leaves[name] = Leaf(place.shape, np.dtype(store.dtype.numpy_dtype))
            if store.shape != shape:
                yield f"{theirs} is {list(store.shape)}, it should be {list(shape)}"

    def _read(self, theirs: str) -> np.ndarray:
        try:
            return np.asarray(self._stores[theirs].read().result())
        except ValueError as error:
            raise ConversionError(f"{theirs} cannot be read: {brief(error)}") from error

    def _ours(self, name: str, place: Place, array: np.ndarray) -> np.ndarray:
        """One layer's weight: RoPE's pairs apart, the scale of attention not in the query."""
        model = self._model
        if place.entry.turned and model.rope_type == "llama3.1":
            # Upstream turns channels 2i and 2i + 1 there, and i and i + half elsewhere.
            array = np.concatenate([array[..., ::2], array[..., 1::2]], axis=-1)
        if name.endswith("/query/kernel") and model.decoder_block in _SCALED:
            scale = np.float32(math.sqrt(model.head_dim))
            array = (array.astype(np.float32) * scale).astype(array.dtype)
        return array

    def _spec(self, theirs: str) -> dict[str, Any]:
        name = theirs.replace("/", ".")
        base: dict[str, Any] = {"driver": "file", "path": f"{self._folder}/"}
        kvstore = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
        if not self._ocdbt:
            kvstore = {"driver": "file", "path": f"{self._folder / name}/"}
        return {"driver": "zarr3" if self._zarr3 else "zarr", "kvstore": kvstore}


def _refuse_fused(names: set[str], folder: Path) -> None:
    """Upstream's fused kernels: their order changed between versions, which the files do not tell.

    Raises:
        ConversionError: There are any.
    """
    for name in sorted(names):
        for part, key in _FUSED.items():
            if f"/{part}/" in name:
                raise ConversionError(
                    f"{folder} holds {name}, written with {key}=true; how it holds its parts is "
                    f"not known: let upstream write the checkpoint with {key}=false"
                )


def _items(folder: Path) -> Path:
    """The folder of a step's arrays."""
    steps = list_steps(folder)
    for place in (folder, folder / _ITEMS, *(folder / str(step) / _ITEMS for step in steps[-1:])):
        if (place / _METADATA).is_file():
            return place
    raise ConversionError(
        f"{folder}: no checkpoint of upstream MaxText's in it; give the folder of its steps, one "
        f"step, or its `{_ITEMS}`, which holds {_METADATA}"
    )


def _names(folder: Path) -> tuple[set[str], bool]:
    """The names of the arrays, parts joined by slashes, and whether they are Zarr 3."""
    file = folder / _METADATA
    try:
        metadata = json.loads(file.read_text())
        keys = [one["key_metadata"] for one in metadata["tree_metadata"].values()]
        names = {"/".join(str(part["key"]) for part in parts) for parts in keys}
    except OSError as error:
        raise ConversionError(f"{file} cannot be read: {brief(error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConversionError(f"{file} is damaged") from error
    return names, bool(metadata.get("use_zarr3"))

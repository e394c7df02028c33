"""The weights of a Hugging Face model as ours, and ours as Hugging Face's."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from maxtext.checkpoint.pieces import Leaf
from maxtext.config.schema import ModelConfig
from maxtext.conversion.errors import ConversionError, listed
from maxtext.conversion.tables import TABLES, Entry
from maxtext.models.decoder import model_params
from maxtext.models.registry import architecture
from maxtext.parallel.params import named_leaves

# Constants that old files hold among the weights.
_CONSTANTS = (".rotary_emb.inv_freq",)
# Versions of transformers differ in where they put the text part.
_TEXT_PREFIXES = ("language_model.model.", "model.language_model.")
_VISION = ("vision_tower.", "multi_modal_projector.")
_HEAD = "decoder/logits_dense/kernel"


class Tensor(Protocol):
    """A tensor that is not read yet."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """Its type."""
        ...

    def read(self) -> np.ndarray:
        """Its numbers."""
        ...


class Weights(Protocol):
    """All weights of a model under our names, read a few rows at a time."""

    @property
    def leaves(self) -> Mapping[str, Leaf]:
        """Shape and type of each."""
        ...

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """The rows of one, in order."""
        ...


@dataclasses.dataclass(frozen=True)
class Place:
    """One of our weights and where it lies in a Hugging Face model.

    Attributes:
        entry: Of the family's table.
        shape: Ours, stacked.
        names: Hugging Face's: one for each layer, or one.
    """

    entry: Entry
    shape: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Ours, of one tensor of theirs."""
        return self.shape[1:] if self.entry.stacked else self.shape


def places(model: ModelConfig) -> dict[str, Place]:
    """Each weight of a model under our name."""
    table = TABLES[model.decoder_block]
    specs: dict[str, Any] = named_leaves(model_params(architecture(model, weight_dtype="float32")))
    found: dict[str, Place] = {}
    for name, spec in specs.items():
        entry = table[name]
        layers = range(spec.shape[0] if entry.stacked else 1)
        names = tuple(entry.huggingface.format(layer=layer) for layer in layers)
        found[name] = Place(entry, spec.shape, names)
    return found


class HuggingFaceWeights:
    """The tensors of a Hugging Face model as our weights.

    Args:
        model: What they have to be.
        tensors: All that there are.
        where: What messages call the model.

    Raises:
        ConversionError: One is missing, left over, or of another shape or type.
    """

    def __init__(self, model: ModelConfig, tensors: Mapping[str, Tensor], *, where: str) -> None:
        self._places = places(model)
        self._tensors = tensors = _text_part(tensors)
        lines = _differences(self._places, _without_copies(tensors, self._places))
        if lines:
            total = sum(len(place.names) for place in self._places.values())
            raise ConversionError(
                f"{where} does not fit its config: {len(lines)} of {total} tensors{listed(lines)}"
            )
        self.leaves = {
            name: Leaf(place.shape, tensors[place.names[0]].dtype)
            for name, place in self._places.items()
        }

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """The rows of one weight: layer by layer, or all of what is not stacked."""
        place = self._places[name]
        for theirs in place.names:
            ours = place.entry.to_ours(self._tensors[theirs].read(), place.row_shape)
            yield ours[None] if place.entry.stacked else ours


def planned(model: ModelConfig, weights: Weights) -> dict[str, Leaf]:
    """What a Hugging Face model holds whose weights are ours.

    Raises:
        ConversionError: Weights are missing, left over, or of another shape.
    """
    found = places(model)
    lines = [f"{name} is missing" for name in found if name not in weights.leaves]
    lines += [f"{name} is of no such model" for name in weights.leaves if name not in found]
    for name, place in found.items():
        leaf = weights.leaves.get(name)
        if leaf is not None and leaf.shape != place.shape:
            lines.append(f"{name} has shape {leaf.shape}, the config says {place.shape}")
    if lines:
        raise ConversionError(f"the weights do not fit their config:{listed(lines)}")
    return {
        theirs: Leaf(place.entry.their_shape(place.row_shape), weights.leaves[name].dtype)
        for name, place in found.items()
        for theirs in place.names
    }


def their_tensors(model: ModelConfig, weights: Weights) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of `planned`, in its order."""
    for name, place in places(model).items():
        theirs = iter(place.names)
        if place.entry.stacked:
            rows = (row for piece in weights.pieces(name) for row in piece)
        else:
            rows = [_whole(weights, name)]
        for row in rows:
            yield next(theirs), place.entry.to_theirs(row)


def _whole(weights: Weights, name: str) -> np.ndarray:
    """All rows of a weight in one array."""
    leaf = weights.leaves[name]
    array, at = np.empty(leaf.shape, leaf.dtype), 0
    for piece in weights.pieces(name):
        array[at : at + len(piece)] = piece
        at += len(piece)
    return array


def _differences(found: Mapping[str, Place], tensors: Mapping[str, Tensor]) -> list[str]:
    lines: list[str] = []
    wanted: set[str] = set()
    for place in found.values():
        wanted.update(place.names)
        shape = place.entry.their_shape(place.row_shape)
        first = tensors.get(place.names[0])
        for name in place.names:
            tensor = tensors.get(name)
            if tensor is None:
                lines.append(f"{name} is missing, it should be {list(shape)}")
            elif tensor.shape != shape:
                lines.append(f"{name} is {list(tensor.shape)}, it should be {list(shape)}")
            elif first is not None and tensor.dtype != first.dtype:
                lines.append(f"{name} is {tensor.dtype}, that of layer 0 is {first.dtype}")
    lines += [f"{name} is in no such model" for name in tensors if name not in wanted]
    return lines


def _text_part(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors of the part that reads and writes text, of a model that sees too."""
    for prefix in _TEXT_PREFIXES:
        if any(name.startswith(prefix) for name in tensors):
            return {
                f"model.{name.removeprefix(prefix)}" if name.startswith(prefix) else name: tensor
                for name, tensor in tensors.items()
                if not any(part in name for part in _VISION)
            }
    return tensors


def _without_copies(tensors: Mapping[str, Tensor], found: Mapping[str, Place]) -> dict[str, Tensor]:
    """The tensors less constants, and less a head that is the embedding once more."""
    kept = {name: one for name, one in tensors.items() if not name.endswith(_CONSTANTS)}
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    if _HEAD not in found and head in kept and embedding in kept:
        same = kept[head].shape == kept[embedding].shape
        if same and np.array_equal(kept[head].read(), kept[embedding].read()):
            del kept[head]
    return kept

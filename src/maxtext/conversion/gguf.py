"""GGUF files: a config, tensors under Hugging Face's names in float32, and a tokenizer.

Source: llama.cpp, docs of the format and convert_hf_to_gguf.py.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from maxtext.checkpoint.errors import brief
from maxtext.config.errors import Origin
from maxtext.config.huggingface_files import (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    Object,
)
from maxtext.config.schema import ModelConfig
from maxtext.config.values import Json
from maxtext.conversion.errors import ConversionError
from maxtext.conversion.gguf_tokenizer import tokenizer_config, tokenizer_json
from maxtext.conversion.side_files import write_json
from maxtext.conversion.tables import TABLES, Entry

_FAMILIES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}
# Families whose rows of queries and keys GGUF orders so that RoPE turns neighbours.
_NEIGHBOURS = ("llama",)
_NAMES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_SCALING = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
}
# Families whose norms GGUF keeps as what they multiply by.
_CENTERED = ("gemma2", "gemma3")
# The size of those whose attention is scaled by the width over the heads; nothing says so.
_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}
_EMBEDDING, _HEAD, _ROPE = "token_embd.weight", "output.weight", "rope_freqs.weight"
_BLOCK_BYTES = 2**24
# GGUF keeps the outcome of Llama 3's scaling, one factor a channel pair; these made all there are.
_LLAMA3_FACTORS = (8.0, 32.0)
_LLAMA3_BOUNDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_LENGTH = 8192


@dataclasses.dataclass(frozen=True)
class GGUFTensor:
    """A tensor of the file, dequantized to float32 when it is read.

    Attributes:
        file: The file.
        info: What gguf's reader knows of it.
        change: Makes Hugging Face's numbers of its own.
    """

    file: Path
    info: Any
    change: Callable[[np.ndarray], np.ndarray]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, as torch has it."""
        return tuple(int(n) for n in reversed(self.info.shape))

    @property
    def dtype(self) -> np.dtype:
        """Float32, whatever it is kept in."""
        return np.dtype(np.float32)

    def read(self) -> np.ndarray:
        """Its numbers.

        Raises:
            ConversionError: The file is cut short, or quantized in a way that gguf cannot read.
        """
        from gguf import quants

        numbers = np.empty(self.shape, np.float32)
        rows = numbers.reshape(-1, self.shape[-1])
        row_bytes = self.info.n_bytes // len(rows)
        step = max(1, _BLOCK_BYTES // row_bytes)
        with self.file.open("rb") as stream:
            stream.seek(int(self.info.data_offset))
            for at in range(0, len(rows), step):
                count = min(step, len(rows) - at)
                block = np.fromfile(stream, np.uint8, count * row_bytes)
                if block.size != count * row_bytes:
                    raise ConversionError(f"{self.file} is cut short")
                try:
                    part = quants.dequantize(block.reshape(count, -1), self.info.tensor_type)
                except NotImplementedError as error:
                    kind = self.info.tensor_type.name
                    raise ConversionError(
                        f"{self.file}: {self.info.name} is quantized as {kind}, which is not read"
                    ) from error
                rows[at : at + count] = part
        return self.change(numbers)


class GGUFModel:
    """A GGUF file.

    Attributes:
        origin: For messages.
        config: What its config.json would say.

    Raises:
        ConversionError: It cannot be read, or is of a model that is not built here.
    """

    def __init__(self, path: str) -> None:
        self._file = Path(os.path.expanduser(path))
        self.origin = Origin("checkpoint", path)
        if importlib.util.find_spec("gguf") is None:
            raise ConversionError("reading GGUF needs gguf: pip install gguf")
        from gguf import GGUFReader

        try:
            reader = GGUFReader(self._file)
            self._fields = {name: field.contents for name, field in reader.fields.items()}
        except OSError as error:
            raise ConversionError(f"{path} cannot be read: {brief(error)}") from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ConversionError(f"{path} is cut short, or no GGUF file") from error
        self._infos = {info.name: info for info in reader.tensors}
        with _damage_named(self._file):
            self.config = self._config()

    def tensors(self, model: ModelConfig) -> dict[str, GGUFTensor]:
        """All tensors under Hugging Face's names; those that it does not have keep theirs."""
        layers = range(model.num_decoder_layers)
        names: dict[str, tuple[str, Entry]] = {}
        for entry in TABLES[model.decoder_block].values():
            for layer in layers if entry.stacked else range(1):
                theirs = entry.huggingface.format(layer=layer)
                names[entry.gguf.format(layer=layer)] = theirs, entry
        found: dict[str, GGUFTensor] = {}
        for name, info in self._infos.items():
            if name == _ROPE:
                continue
            theirs, entry = names.get(name, (name, None))
            found[theirs] = GGUFTensor(self._file, info, self._change(theirs, entry, model))
        return found

    def write_side_files(self, folder: Path) -> None:
        """Writes config.json and the tokenizer's files.

        Raises:
            ConversionError: The tokenizer is of a kind that is not known, or damaged.
        """
        with _damage_named(self._file):
            metadata = self._metadata()
            tokenizer, beside = tokenizer_json(metadata), tokenizer_config(metadata)
        write_json(folder / TOKENIZER, tokenizer)
        write_json(folder / TOKENIZER_CONFIG, beside)
        ids = {f"{name}_token_id": metadata.get(f"{name}_token_id") for name in ("bos", "eos")}
        ids["pad_token_id"] = metadata.get("padding_token_id")
        write_json(folder / CONFIG, {**self.config, **ids})
        write_json(folder / GENERATION_CONFIG, ids)

    def _change(
        self, theirs: str, entry: Entry | None, model: ModelConfig
    ) -> Callable[[np.ndarray], np.ndarray]:
        """What makes Hugging Face's numbers of the file's."""
        if entry is not None and entry.turned and self._architecture in _NEIGHBOURS:
            return _halves(model.head_dim)
        if self._architecture in _CENTERED and theirs.endswith("norm.weight"):
            return _less_one
        return _as_it_is

    @property
    def _architecture(self) -> str:
        return str(self._field("general.architecture", ""))

    def _field(self, name: str, default: Json = None) -> Any:
        contents = self._fields.get(name)
        return default if contents is None else contents()

    def _metadata(self) -> dict[str, Any]:
        """What the file says of its tokenizer, without the prefix."""
        prefix = "tokenizer.ggml."
        found = {
            name.removeprefix(prefix): contents()
            for name, contents in self._fields.items()
            if name.startswith(prefix)
        }
        return found | {"chat_template": self._field("tokenizer.chat_template")}

    def _config(self) -> Object:
        kind = self._architecture
        if kind not in _FAMILIES:
            raise ConversionError(
                f"{self._file}: models of the architecture {kind!r} are not read; there are "
                f"{', '.join(_FAMILIES)}"
            )
        config: Object = {"model_type": _FAMILIES[kind]}
        for theirs, name in _NAMES.items():
            value = self._field(f"{kind}.{name}")
            if value is not None:
                config[theirs] = _shortest(value)
        embedding = self._infos.get(_EMBEDDING)
        if embedding is None:
            raise ConversionError(f"{self._file} holds no {_EMBEDDING}")
        config["vocab_size"] = int(embedding.shape[1])
        config["tie_word_embeddings"] = _HEAD not in self._infos
        scaling = str(self._field(f"{kind}.rope.scaling.type", "none"))
        if scaling != "none":
            rest = {key: self._field(f"{kind}.{name}") for key, name in _SCALING.items()}
            known = {key: _shortest(value) for key, value in rest.items() if value is not None}
            config["rope_scaling"] = {"rope_type": scaling, **known}
        if kind in _LARGEST_GEMMA:
            largest = config["num_hidden_layers"] == _LARGEST_GEMMA[kind]
            across = cast(int, config["hidden_size"]) // cast(int, config["num_attention_heads"])
            config["query_pre_attn_scalar"] = across if largest else config["head_dim"]
        if _ROPE in self._infos:
            config["rope_scaling"] = self._llama3(config)
        return config

    def _llama3(self, config: Mapping[str, Any]) -> Json:
        """The scaling whose factors the file holds."""
        from maxtext.ops import rope

        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        plain = rope.inverse_frequencies(head_dim, config["rope_theta"])
        factors = GGUFTensor(self._file, self._infos[_ROPE], _as_it_is).read().ravel()
        for factor in _LLAMA3_FACTORS:
            scaling = rope.Llama3Scaling(
                factor=factor, original_length=_LLAMA3_LENGTH, **_LLAMA3_BOUNDS
            )
            want = plain / rope.Rope(head_dim, config["rope_theta"], scaling).frequencies()
            if want.shape == factors.shape and np.allclose(want, factors, rtol=1e-3):
                return {
                    "rope_type": "llama3",
                    "factor": factor,
                    "original_max_position_embeddings": _LLAMA3_LENGTH,
                    **_LLAMA3_BOUNDS,
                }
        raise ConversionError(f"{self._file}: {_ROPE} is of no scaling that is known")


@contextlib.contextmanager
def _damage_named(file: Path) -> Generator[None]:
    """Names the file whose fields are not there, or of other values than they can have.

    Raises:
        ConversionError: They are.
    """
    try:
        yield
    except ConversionError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        kind = "there is no" if isinstance(error, KeyError) else type(error).__name__
        raise ConversionError(f"{file} is damaged: {kind} {brief(error)}") from error


def _shortest(value: Any) -> Any:
    """A number of float32 as the decimal that it was made of."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _as_it_is(numbers: np.ndarray) -> np.ndarray:
    return numbers


def _less_one(numbers: np.ndarray) -> np.ndarray:
    return numbers - 1


def _halves(head_dim: int) -> Callable[[np.ndarray], np.ndarray]:
    """Rows whose neighbours RoPE turns together, as those whose halves it does."""

    def reorder(numbers: np.ndarray) -> np.ndarray:
        pairs = numbers.reshape(-1, head_dim // 2, 2, math.prod(numbers.shape[1:]))
        return pairs.swapaxes(1, 2).reshape(numbers.shape)

    return reorder

"""Logits of tiny random models against those of transformers, which make_fixtures.py stored."""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.checkpoint.pieces import Leaf
from maxtext.config.huggingface import config_json, huggingface_source
from maxtext.config.load import load
from maxtext.config.schema import ModelConfig
from maxtext.config.trained import read_model
from maxtext.conversion import commands
from maxtext.conversion.huggingface import HuggingFaceWeights
from maxtext.conversion.safetensors import open_folder
from maxtext.conversion.safetensors_writer import FolderWriter
from maxtext.layers.attentions import training_attend
from maxtext.layers.embeddings import project_to_vocab
from maxtext.models.backend import resolve
from maxtext.models.decoder import (
    Architecture,
    Model,
    Runtime,
    hidden_states,
    model_params,
    output_kernel,
)
from maxtext.models.registry import architecture
from maxtext.parallel.params import map_params
from maxtext.parallel.stages import stages_from_config

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.npz"))
TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True, eq=False)
class Fixture:
    config: ModelConfig
    architecture: Architecture
    params: Model
    tokens: np.ndarray
    logits: np.ndarray
    tensors: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Held:
    """A tensor in memory."""

    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    def read(self) -> np.ndarray:
        return self.array


def read(name: str) -> Fixture:
    with np.load(FIXTURES / f"{name}.npz") as file:
        arrays = dict(file)
    settings = json.loads(str(arrays.pop("settings")))
    tokens, logits = arrays.pop("tokens"), arrays.pop("logits")
    # No tokenizer has so few tokens, so the config takes this size later than the rest.
    vocab = {"vocab_size": settings.pop("vocab_size")}
    argv = [f"{key}={value}" for key, value in settings.items()]
    config = load(argv, {}).config.model.model_copy(update=vocab)
    model = architecture(config, weight_dtype="float32")
    tensors = {theirs: Held(array) for theirs, array in arrays.items()}
    weights = HuggingFaceWeights(config, tensors, where=name)
    params = map_params(
        lambda path, _: jnp.concatenate([jnp.asarray(x) for x in weights.pieces(path)]),
        model_params(model),
    )
    return Fixture(config, model, params, tokens, logits, arrays)


def logits_of(
    fixture: Fixture, tokens: np.ndarray, positions: np.ndarray, segments: np.ndarray, *argv: str
) -> np.ndarray:
    with jax.default_matmul_precision("highest"):
        return np.asarray(compiled(fixture, argv)(fixture.params, tokens, positions, segments))


@functools.cache
def compiled(fixture: Fixture, argv: tuple[str, ...]) -> Callable[..., jax.Array]:
    """Weights, tokens, positions and segments to logits, compiled once for all tests."""
    given = load(argv, {}).config.compute
    length = fixture.tokens.shape[1]
    compute = resolve(given, fixture.config, backend="cpu", length=length)

    def logits(params: Model, tokens: jax.Array, positions: jax.Array, segments: jax.Array):
        runtime = Runtime(
            attend=functools.partial(training_attend, compute),
            stages=stages_from_config(compute),
            dtype=compute.dtype,
        )
        hidden = hidden_states(
            fixture.architecture, params, tokens, positions, segments, runtime=runtime
        )
        cap = fixture.config.final_logits_soft_cap
        return project_to_vocab(hidden, output_kernel(params), float32=False, soft_cap=cap)

    return jax.jit(logits)


@pytest.fixture(scope="module", params=NAMES)
def fixture(request: pytest.FixtureRequest) -> Fixture:
    return read(request.param)


def whole_rows(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    return tokens, positions, np.ones_like(tokens)


def test_logits_equal_those_of_transformers(fixture: Fixture) -> None:
    got = logits_of(fixture, *whole_rows(fixture.tokens))
    assert np.std(fixture.logits) > 0.5
    np.testing.assert_allclose(got, fixture.logits, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["llama_gqa", "gemma2", "gemma3"])
def test_logits_of_an_unrolled_stack_are_the_same(name: str) -> None:
    fixture = read(name)
    got = logits_of(fixture, *whole_rows(fixture.tokens), "scan_layers=false")
    np.testing.assert_allclose(got, fixture.logits, rtol=0, atol=TOLERANCE)


def test_there_and_back_is_bit_identical(fixture: Fixture, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    (before / "config.json").write_text(json.dumps(config_json(fixture.config)))
    plan = {name: Leaf(x.shape, x.dtype) for name, x in fixture.tensors.items()}
    writer = FolderWriter(before, plan)
    for name, x in fixture.tensors.items():
        writer.write(name, x)
    writer.finish()
    assert read_model(huggingface_source(before)) == fixture.config
    commands.from_hf(str(before), tmp_path / "ours")
    commands.to_hf(str(tmp_path / "ours"), after)
    got = {name: one.read() for name, one in open_folder(after).items()}
    assert set(got) == set(fixture.tensors)
    for name, x in fixture.tensors.items():
        assert got[name].dtype == x.dtype
        assert got[name].tobytes() == x.tobytes(), name
    assert json.loads((after / "config.json").read_text()).items() >= (
        config_json(fixture.config).items()
    )


def test_two_packed_documents_have_the_logits_of_each_alone(fixture: Fixture) -> None:
    length = fixture.tokens.shape[1]
    first, second = 11, length - 20
    # The second row is padding, there for the program that is compiled already.
    tokens = np.full((2, length), 3, np.int32)
    positions, segments = np.zeros_like(tokens), np.zeros_like(tokens)
    place = 0
    for number, (row, size) in enumerate(((0, first), (1, second)), start=1):
        part = slice(place, place + size)
        tokens[0, part] = fixture.tokens[row, :size]
        positions[0, part] = np.arange(size)
        segments[0, part] = number
        place += size
    got = logits_of(fixture, tokens, positions, segments)
    for start, row, size in ((0, 0, first), (first, 1, second)):
        np.testing.assert_allclose(
            got[0, start : start + size], fixture.logits[row, :size], rtol=0, atol=TOLERANCE
        )
    assert np.isfinite(got).all()


# Of a fixture, a key whose other value must show in the last logits.
SHOWN = [
    ("llama_scaled", {"rope_type": "default"}),
    ("llama_linear", {"rope_type": "default"}),
    ("qwen2", {"rope_type": "default"}),
    ("qwen2", {"rope_attention_scaling": False}),
    ("mistral", {"sliding_window_size": 8}),
    ("gemma2", {"sliding_window_size": 10}),
    ("gemma2", {"attn_logits_soft_cap": 0.0}),
    ("gemma2", {"final_logits_soft_cap": 0.0}),
    ("gemma2", {"query_pre_attn_scalar": 0.0}),
    ("gemma3", {"sliding_window_size": 10}),
    ("gemma3", {"local_rope_max_timescale": -1.0}),
    ("gemma3", {"rope_type": "default"}),
    ("gemma3", {"decoder_block": "gemma2"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "change"), SHOWN)
def test_what_a_key_does_shows_in_the_fixture(name: str, change: dict[str, object]) -> None:
    fixture = read(name)
    config = fixture.config.model_copy(update=change)
    other = architecture(config, weight_dtype="float32")
    changed = dataclasses.replace(fixture, config=config, architecture=other)
    got = logits_of(changed, *whole_rows(fixture.tokens))
    assert np.abs(got - fixture.logits)[:, -1].max() > 0.02

"""Logits of tiny random models against those of transformers, which make_fixtures.py stored."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.config.load import load
from maxtext.config.schema import ModelConfig
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
LAYERS = {
    "pre_self_attention_layer_norm/scale": "input_layernorm",
    "post_self_attention_layer_norm/scale": "post_attention_layernorm",
    "pre_self_attention_norm/scale": "input_layernorm",
    "post_self_attention_norm/scale": "post_attention_layernorm",
    "pre_ffw_norm/scale": "pre_feedforward_layernorm",
    "post_ffw_norm/scale": "post_feedforward_layernorm",
    "self_attention/query/bias": "self_attn.q_proj",
    "self_attention/key/bias": "self_attn.k_proj",
    "self_attention/value/bias": "self_attn.v_proj",
    "self_attention/query/kernel": "self_attn.q_proj",
    "self_attention/key/kernel": "self_attn.k_proj",
    "self_attention/value/kernel": "self_attn.v_proj",
    "self_attention/out/kernel": "self_attn.o_proj",
    "self_attention/query_norm/scale": "self_attn.q_norm",
    "self_attention/key_norm/scale": "self_attn.k_norm",
    "mlp/wi_0/kernel": "mlp.gate_proj",
    "mlp/wi_1/kernel": "mlp.up_proj",
    "mlp/wo/kernel": "mlp.down_proj",
}
REST = {
    "token_embedder/embedding": "model.embed_tokens.weight",
    "decoder/decoder_norm/scale": "model.norm.weight",
    "decoder/logits_dense/kernel": "lm_head.weight",
}


@dataclasses.dataclass(frozen=True)
class Fixture:
    config: ModelConfig
    architecture: Architecture
    params: Model
    tokens: np.ndarray
    logits: np.ndarray
    unread: set[str]


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
    unread = set(arrays)

    def weight(path: str, spec) -> jax.Array:
        if path in REST:
            unread.discard(REST[path])
            found = arrays[REST[path]]
            return jnp.asarray(found.T if path.endswith("kernel") else found)
        theirs = LAYERS[path.removeprefix("decoder/layers/")]
        kind = "bias" if path.endswith("bias") else "weight"
        names = [f"model.layers.{index}.{theirs}.{kind}" for index in range(spec.shape[0])]
        unread.difference_update(names)
        # torch keeps [out, in]; heads are rows of out, and of in for the last projection.
        return jnp.stack([jnp.asarray(arrays[one].T).reshape(spec.shape[1:]) for one in names])

    params = map_params(weight, model_params(model))
    return Fixture(config, model, params, tokens, logits, unread)


def logits_of(
    fixture: Fixture, tokens: np.ndarray, positions: np.ndarray, segments: np.ndarray, *argv: str
) -> np.ndarray:
    given = load(argv, {}).config.compute
    compute = resolve(given, fixture.config, backend="cpu", length=tokens.shape[1])

    def forward(params: Model, tokens: jax.Array, positions: jax.Array, segments: jax.Array):
        runtime = Runtime(
            attend=training_attend(compute, segments),
            stages=stages_from_config(compute),
            dtype=compute.dtype,
        )
        hidden = hidden_states(fixture.architecture, params, tokens, positions, runtime=runtime)
        cap = fixture.config.final_logits_soft_cap
        return project_to_vocab(hidden, output_kernel(params), float32=False, soft_cap=cap)

    with jax.default_matmul_precision("highest"):
        return np.asarray(jax.jit(forward)(fixture.params, tokens, positions, segments))


@pytest.fixture(scope="module", params=NAMES)
def fixture(request: pytest.FixtureRequest) -> Fixture:
    return read(request.param)


def whole_rows(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    return tokens, positions, np.ones_like(tokens)


@pytest.mark.parametrize("scan", ["true", "false"])
def test_logits_equal_those_of_transformers(fixture: Fixture, scan: str) -> None:
    got = logits_of(fixture, *whole_rows(fixture.tokens), f"scan_layers={scan}")
    assert np.std(fixture.logits) > 0.5
    np.testing.assert_allclose(got, fixture.logits, rtol=0, atol=TOLERANCE)


def test_every_weight_is_read(fixture: Fixture) -> None:
    assert fixture.unread == set()


def test_two_packed_documents_have_the_logits_of_each_alone(fixture: Fixture) -> None:
    length = fixture.tokens.shape[1]
    first, second = 11, length - 20
    tokens = np.full((1, length), 3, np.int32)
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


@pytest.mark.parametrize(("name", "change"), SHOWN)
def test_what_a_key_does_shows_in_the_fixture(name: str, change: dict[str, object]) -> None:
    fixture = read(name)
    config = fixture.config.model_copy(update=change)
    other = architecture(config, weight_dtype="float32")
    changed = dataclasses.replace(fixture, config=config, architecture=other)
    got = logits_of(changed, *whole_rows(fixture.tokens))
    assert np.abs(got - fixture.logits)[:, -1].max() > 0.02

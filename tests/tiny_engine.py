"""T0 behind an engine, and what its greedy tokens are held to: the forward pass of training."""

import dataclasses
import functools
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from maxtext.config.load import load
from maxtext.decoding.engine import Engine
from maxtext.decoding.load import Served, make_engine, prepare
from maxtext.decoding.requests import Event, Request, Sampling
from maxtext.layers.attentions import training_attend
from maxtext.layers.embeddings import project_to_vocab
from maxtext.models.decoder import Architecture, Model, Runtime, hidden_states, output_kernel
from maxtext.parallel.params import initialize, shardings
from maxtext.parallel.serving import serving_layout
from maxtext.parallel.stages import Stages
from tiny import LENGTH, T0, VOCAB

_weights: dict[Hashable, Model] = {}


def tiny_served(*argv: str, devices: int = 1, **mesh: Any) -> Served:
    """T0 with `argv` on the first devices; `mesh` is keys of it that training would refuse."""
    own = ("page_size=4", "max_num_seqs=9", "max_num_batched_tokens=64")
    given = {text.split("=", 1)[0]: text for text in (*T0, *own, *argv)}
    config = load(list(given.values()), {}).config
    config = config.model_copy(update={"mesh": config.mesh.model_copy(update=mesh)})
    served = prepare(config.model_copy(update={"mesh": load(T0, {}).config.mesh}))
    layout = serving_layout(config.mesh, config.model, jax.devices()[:devices])
    layout = dataclasses.replace(layout, log=served.layout.log)
    return dataclasses.replace(served, layout=layout)


def weights(served: Served) -> Model:
    """Random weights on the host; larger than at the start of a training, so that tokens differ."""
    key = (served.config.model,)
    if key not in _weights:
        draw = jax.jit(lambda: initialize(served.specs, jax.random.key(0)))
        _weights[key] = jax.tree.map(lambda leaf: 3 * np.asarray(leaf), draw())
    return _weights[key]


def tiny_engine(*argv: str, devices: int = 1, **mesh: Any) -> tuple[Engine, Served]:
    """An engine with these weights, of `tiny_served`."""
    served = tiny_served(*argv, devices=devices, **mesh)
    placed = jax.device_put(weights(served), shardings(served.specs, served.layout))
    return make_engine(served, placed), served


def prompts(*lengths: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Random prompts."""
    random = np.random.default_rng(seed)
    return [tuple(random.integers(0, VOCAB - 3, length).tolist()) for length in lengths]


def request(tokens: Sequence[int], **sampling) -> Request:
    """A request for as many new tokens as there is room for, ten at most."""
    new = min(10, LENGTH - len(tokens))
    return Request(tuple(tokens), Sampling(**{"max_new_tokens": new, **sampling}))


def run(engine: Engine, requests: Sequence[Request]) -> list[list[Event]]:
    """The events of each request."""
    ids = [engine.add(one) for one in requests]
    events: dict[int, list[Event]] = {number: [] for number in ids}
    for event in engine.stream(ids):
        events[event.id].append(event)
    return [events[number] for number in ids]


def tokens_of(events: Sequence[Event]) -> list[int]:
    """The new tokens."""
    return [token for event in events for token in event.tokens]


def generate(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    """The new tokens of each request."""
    return [tokens_of(events) for events in run(engine, requests)]


@functools.cache
def _forward(model: Architecture, float32: bool):
    @jax.jit
    def logits(params: Model, rows: jax.Array) -> jax.Array:
        places = jnp.broadcast_to(jnp.arange(LENGTH), rows.shape)
        compute = load([*T0, "dtype=float32", "attention=dot_product"], {}).config.compute
        runtime = Runtime(
            attend=functools.partial(training_attend, compute), stages=Stages(), dtype="float32"
        )
        hidden = hidden_states(model, params, rows, places, jnp.ones_like(rows), runtime=runtime)
        cap = model.config.final_logits_soft_cap
        return project_to_vocab(hidden, output_kernel(params), float32=float32, soft_cap=cap)

    return logits


def forward_logits(served: Served, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Logits after each token of texts, by one forward pass over whole rows."""
    rows = np.zeros((64, LENGTH), np.int32)
    for row, text in zip(rows, texts, strict=False):
        row[: len(text)] = text
    return np.asarray(_forward(served.architecture, False)(weights(served), rows))


def assert_greedy(served: Served, requests: Sequence[Request], found: Sequence[list[int]]) -> None:
    """Each token is the likeliest after all before it, by one forward pass over whole rows."""
    texts = [[*one.tokens, *new] for one, new in zip(requests, found, strict=True)]
    likeliest = np.argmax(forward_logits(served, texts), axis=-1)
    for row, (one, text) in enumerate(zip(requests, texts, strict=True)):
        assert len(text) == len(one.tokens) + one.sampling.max_new_tokens
        first = len(one.tokens)
        np.testing.assert_array_equal(text[first:], likeliest[row, first - 1 : len(text) - 1])

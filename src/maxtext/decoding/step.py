"""A step of the engine on the devices: tokens of many sequences in, the next of each out."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Lowered

from maxtext.decoding.sampling import Chosen, Mode, Settings, choose
from maxtext.layers.paged import PagedAttend
from maxtext.models.decoder import Architecture, Model, cached_hidden_states, cached_logits
from maxtext.ops.paged_attention import Cache, Ragged, token_places
from maxtext.parallel.layout import Layout, constrain, use_layout
from maxtext.types import Array, Bool, DType, Int

_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty")


@dataclasses.dataclass(frozen=True)
class StepShape:
    """Sizes of a step, for which it is compiled.

    Attributes:
        ranks: Ranks that split tokens and pages.
        tokens: Tokens of a rank, padding included.
        sequences: Sequences of a rank.
        table: Pages of a sequence at most.
    """

    ranks: int
    tokens: int
    sequences: int
    table: int

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        """What a rank's row of the one array of numbers holds that a step is handed, in order."""
        each = ("lengths", "top_k", "seed", "places", *_FLOATS)
        return {
            "tokens": (self.tokens,),
            "starts": (self.sequences + 1,),
            "counts": (3,),
            "page_table": (self.sequences, self.table),
            **dict.fromkeys(each, (self.sequences,)),
        }

    @property
    def width(self) -> int:
        """Numbers of a rank's row."""
        return sum(map(math.prod, self.parts.values()))

    def views(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The parts of an array [ranks, width] of int32; writing to them writes to it."""
        views, start = {}, 0
        for name, shape in self.parts.items():
            end = start + math.prod(shape)
            view = rows[:, start:end].reshape(-1, *shape)
            views[name] = view.view(np.float32) if name in _FLOATS else view
            start = end
        return views

    def unpack(self, rows: Int[Array, "ranks width"]) -> dict[str, jax.Array]:
        """The same on the devices, as copies."""
        parts, start = {}, 0
        for name, shape in self.parts.items():
            end = start + math.prod(shape)
            part = rows[:, start:end].reshape(-1, *shape)
            is_float = name in _FLOATS
            parts[name] = jax.lax.bitcast_convert_type(part, jnp.float32) if is_float else part
            start = end
        return parts


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A model's step, to be compiled for each shape and mode.

    Attributes:
        architecture: The model.
        dtype: Type of activations.
        logits_in_float32: Whether the output head runs in float32.
        vocab_size: Tokens of the tokenizer.
    """

    architecture: Architecture
    dtype: DType
    logits_in_float32: bool
    vocab_size: int

    def __call__(
        self,
        params: Model,
        caches: list[Cache],
        rows: Int[Array, "ranks width"],
        seen: Bool[Array, "S V"] | None,
        *,
        shape: StepShape,
        mode: Mode,
    ) -> tuple[list[Cache], Chosen]:
        """The caches with all tokens of the step, and what comes after the last of each sequence.

        Args:
            params: With the layers of each group apart.
            caches: One a layer.
            rows: A row of numbers for each rank, as `shape` has it.
            seen: Which tokens each sequence holds, if `mode` asks for it.
        """
        parts = shape.unpack(rows)
        ragged = {field.name: parts[field.name] for field in dataclasses.fields(Ragged)}
        places = jax.vmap(lambda one: token_places(Ragged(**one), shape.tokens)[1])(ragged)
        flat = Ragged(**jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), ragged))
        attends = [PagedAttend(flat, cache) for cache in caches]
        # Ranks that split requests in attention alone embed all of their tokens together.
        tokens = parts["tokens"].reshape(1, -1)
        hidden = cached_hidden_states(
            self.architecture,
            params,
            constrain(tokens, "activation_batch", "activation_length"),
            jnp.maximum(places, 0).reshape(1, -1),
            attends=attends,
            dtype=self.dtype,
        )
        by_rank = hidden.reshape(shape.ranks, shape.tokens, -1)
        last = jnp.maximum(parts["starts"][:, 1:, None] - 1, 0)
        ends = jnp.take_along_axis(by_rank, last, axis=1).reshape(1, -1, hidden.shape[-1])
        logits = cached_logits(self.architecture, params, ends, float32=self.logits_in_float32)
        names = ("top_k", "seed", "places", *_FLOATS)
        settings = Settings(**{name: parts[name].reshape(-1) for name in names}, seen=seen)
        chosen = choose(logits[0], settings, mode=mode, vocab_size=self.vocab_size)
        return [attend.cache for attend in attends], chosen


def lower_step(
    step: Step,
    params: Model,
    caches: list[Cache],
    layout: Layout,
    *,
    shape: StepShape,
    mode: Mode,
) -> Lowered:
    """The program of a step on arrays alone, those of the caches donated.

    It takes the leaves of `params` and of `caches`, which may be shapes here, and gives leaves of
    caches: JAX traverses trees of other kinds in Python, at every call.
    """
    weights, tree = jax.tree.flatten(params)
    cached, cache_tree = jax.tree.flatten(caches)

    def flat(weights: list[jax.Array], cached: list[jax.Array], rows: Any, seen: Any) -> Any:
        params, caches = tree.unflatten(weights), cache_tree.unflatten(cached)
        caches, chosen = step(params, caches, rows, seen, shape=shape, mode=mode)
        return jax.tree.leaves(caches), chosen

    rows = jax.ShapeDtypeStruct((shape.ranks, shape.width), jnp.int32)
    rows = rows.update(sharding=layout.sharding(("pages", None), rows.shape))
    vocab = step.architecture.config.vocab_size
    seen = jax.ShapeDtypeStruct((shape.ranks * shape.sequences, vocab), jnp.bool)
    with use_layout(layout):
        run = jax.jit(flat, donate_argnums=1)
        return run.lower(weights, cached, rows, seen if mode.penalizes else None)

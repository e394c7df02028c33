"""The decoder that every family shares: embed, run the stack, norm, head."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from maxtext.config.schema import ModelConfig
from maxtext.layers.attentions import Attend, Rotation
from maxtext.layers.embeddings import (
    Embedding,
    embed,
    embedding_params,
    head_kernel,
    project_to_vocab,
)
from maxtext.layers.linears import Linear, linear_params
from maxtext.layers.normalizations import AnyNorm, NormParams, norm
from maxtext.models.fusion import NOTHING_FUSED, Fusion
from maxtext.models.layer_kinds import LayerKind
from maxtext.ops.attention import AttentionPattern
from maxtext.ops.dense import Turned
from maxtext.ops.dropout import dropout
from maxtext.parallel.layout import constrain
from maxtext.parallel.params import pytree, stack
from maxtext.parallel.pipeline import Pipeline, Stack, run_stack, stage_rules
from maxtext.parallel.stages import Stages
from maxtext.types import Array, DType, Float, Int, PRNGKeyArray


@dataclasses.dataclass(frozen=True)
class Call:
    """What every layer of one kind is handed in one forward pass; `rows` are their numbers."""

    config: ModelConfig
    rotation: Rotation
    pattern: AttentionPattern
    attend: Attend
    dropout_rate: float
    rows: Int[Array, " B"]


@runtime_checkable
class Layer(Protocol):
    """One layer: weights, residual stream and dropout key to residual stream."""

    def __call__(
        self, params: Any, x: jax.Array, key: PRNGKeyArray | None, /, *, call: Call
    ) -> jax.Array:
        """The residual stream after the layer."""
        ...


@dataclasses.dataclass(frozen=True)
class Group:
    """A run of layers of equal weights.

    Attributes:
        name: Where its stacked weights lie in the decoder.
        size: Number of layers.
        params: Declares the weights of one.
        layer: Applies one.
        cycle: The kinds of its first layers; from then on they repeat, and end where they end.
    """

    name: str
    size: int
    params: Any
    layer: Layer
    cycle: tuple[LayerKind, ...]


@dataclasses.dataclass(frozen=True)
class Family:
    """What a family has of its own.

    Attributes:
        groups: Config and type of the weights to the runs of layers, in order.
        norm_params: Declares the norms.
        scaled_embeddings: Whether the embeddings are multiplied by the root of their width.
    """

    groups: Callable[..., tuple[Group, ...]]
    norm_params: NormParams
    scaled_embeddings: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Architecture:
    """All that is fixed about a model: its family, its sizes and its groups of layers."""

    config: ModelConfig
    family: Family
    groups: tuple[Group, ...]
    weight_dtype: DType

    @property
    def layers(self) -> tuple[LayerKind, ...]:
        """The kind of each layer, in order."""
        kinds = (itertools.islice(itertools.cycle(g.cycle), g.size) for g in self.groups)
        return tuple(itertools.chain.from_iterable(kinds))


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """Weights of the stack and of what follows it.

    In names of weights each group stands under its own name: `decoder/layers/mlp/wo/kernel`.

    Attributes:
        groups: Stacked weights of each group of layers.
        decoder_norm: The last norm.
        logits_dense: The output head; None where the embedding is the head.
    """

    groups: dict[str, Any]
    decoder_norm: AnyNorm
    logits_dense: Linear | None

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        """Children under their names; for JAX."""
        named = {
            **self.groups,
            "decoder_norm": self.decoder_norm,
            "logits_dense": self.logits_dense,
        }
        children = [(jax.tree_util.GetAttrKey(name), child) for name, child in named.items()]
        return children, tuple(self.groups)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], children: tuple[Any, ...]) -> "Decoder":
        """The inverse; for JAX."""
        *groups, decoder_norm, logits_dense = children
        # Not by __init__, which may hold to its types: JAX puts whatever it likes into a tree.
        made = object.__new__(cls)
        fields = {"decoder_norm": decoder_norm, "logits_dense": logits_dense}
        vars(made).update(groups=dict(zip(names, groups, strict=True)), **fields)
        return made


@pytree
class Model:
    """All weights."""

    token_embedder: Embedding
    decoder: Decoder


@pytree
class Rows:
    """What layers are told of the rows that they compute, beside the activations.

    Attributes:
        positions: Of each token in its document, in the order that devices hold tokens in.
        segments: What the attention port asks for.
        numbers: Of each row in the batch.
    """

    positions: Int[Array, "B L"]
    segments: Int[Array, "B S"]
    numbers: Int[Array, " B"]


@dataclasses.dataclass(frozen=True)
class Runtime:
    """How one forward pass runs.

    Attributes:
        attend: Segments of some rows to the attention port for them.
        stages: How stacks run.
        pipeline: How they run on devices of which each has a part of the layers.
        fusion: Of the weights.
        dtype: Type of activations.
        one_hot_embed: Whether tokens are embedded by a product.
        dropout_rate: Part of the activations that dropout zeroes.
        dropout_key: None turns dropout off.
    """

    attend: Callable[[Int[Array, "B S"]], Attend]
    stages: Stages
    dtype: DType
    one_hot_embed: bool = False
    pipeline: Pipeline | None = None
    fusion: Fusion = NOTHING_FUSED
    dropout_rate: float = 0.0
    dropout_key: PRNGKeyArray | None = None


def model_params(architecture: Architecture) -> Model:
    """Declares every weight."""
    config, dtype = architecture.config, architecture.weight_dtype
    head = linear_params(
        (config.emb_dim, config.vocab_size),
        ("embed", "vocab"),
        scale=config.dense_init_scale,
        dtype=dtype,
    )
    return Model(
        token_embedder=embedding_params(config, dtype=dtype),
        decoder=Decoder(
            groups={g.name: stack(g.params, g.size, "layers") for g in architecture.groups},
            decoder_norm=architecture.family.norm_params(config.emb_dim, dtype=dtype),
            logits_dense=None if config.logits_via_embedding else head,
        ),
    )


def hidden_states(
    architecture: Architecture,
    params: Model,
    tokens: Int[Array, "B L"],
    positions: Int[Array, "B L"],
    segments: Int[Array, "B S"],
    *,
    runtime: Runtime,
) -> Float[Array, "B L D"]:
    """What the output head reads: the stack's result after the last norm."""
    config = architecture.config
    rows = Rows(positions=positions, segments=segments, numbers=jnp.arange(tokens.shape[0]))
    sizes = [group.size for group in architecture.groups]
    embed_key, *group_keys = _dropout_keys(runtime.dropout_key, sizes)
    scaled = architecture.family.scaled_embeddings
    # A lookup is no work worth splitting over stages, and so the first one has what it made.
    with stage_rules(None if runtime.one_hot_embed else runtime.pipeline):
        x = embed(
            params.token_embedder,
            constrain(tokens, "activation_batch", "activation_length"),
            dtype=runtime.dtype,
            scaled=scaled,
            one_hot=runtime.one_hot_embed,
        )
    x = dropout(x, embed_key, rate=runtime.dropout_rate, rows=rows.numbers)
    for group, keys in zip(architecture.groups, group_keys, strict=True):
        stack = Stack(
            layers=functools.partial(_layers, architecture, group, runtime),
            specs=runtime.fusion.specs(group.params),
            weights=params.decoder.groups[group.name],
            per_layer=keys,
        )
        x = run_stack(runtime.pipeline, runtime.stages, stack, x, rows)
    return norm(params.decoder.decoder_norm, x, eps=config.normalization_layer_epsilon)


def cached_hidden_states(
    architecture: Architecture,
    params: Model,
    tokens: Int[Array, "B L"],
    positions: Int[Array, "B L"],
    *,
    attends: Sequence[Attend],
    dtype: DType,
) -> Float[Array, "B L D"]:
    """`hidden_states` with an attention port for each layer, which may keep what it was handed.

    The weights of each group are a tuple of one tree a layer: a slice of stacked weights would
    be copied at each call, which costs as much as the rest of a step that decodes.
    """
    calls = _calls(
        architecture,
        positions,
        attend=attends[0],
        dropout_rate=0.0,
        rows=jnp.arange(tokens.shape[0]),
    )
    ports = iter(attends)
    scaled = architecture.family.scaled_embeddings
    x = embed(params.token_embedder, tokens, dtype=dtype, scaled=scaled)
    for group in architecture.groups:
        # Kinds go on without end, so they are the one that may be longer.
        for weights, kind in zip(
            params.decoder.groups[group.name], itertools.cycle(group.cycle), strict=False
        ):
            call = dataclasses.replace(calls[kind], attend=next(ports))
            x = group.layer(weights, x, None, call=call)
    return norm(params.decoder.decoder_norm, x, eps=architecture.config.normalization_layer_epsilon)


def cached_logits(
    architecture: Architecture, params: Model, hidden: Float[Array, "B L D"], *, float32: bool
) -> Float[Array, "B L V"]:
    """What the output head makes of `cached_hidden_states`; `float32` as in `project_to_vocab`."""
    head = params.decoder.logits_dense
    # Not `output_kernel`: a tied embedding is read as it lies.
    kernel = Turned(rows=params.token_embedder.embedding) if head is None else head.kernel
    cap = architecture.config.final_logits_soft_cap
    return project_to_vocab(hidden, kernel, float32=float32, soft_cap=cap)


def output_kernel(params: Model) -> Float[Array, "D V"]:
    """The weights of the output head, the embedding's where they are tied."""
    if params.decoder.logits_dense is None:
        return head_kernel(params.token_embedder)
    return params.decoder.logits_dense.kernel


def _layers(
    architecture: Architecture, group: Group, runtime: Runtime, rows: Rows
) -> list[Callable[..., jax.Array]]:
    """The layers of a group's cycle, for some rows."""
    calls = _calls(
        architecture,
        rows.positions,
        attend=runtime.attend(rows.segments),
        dropout_rate=runtime.dropout_rate,
        rows=rows.numbers,
    )
    return [functools.partial(group.layer, call=calls[kind]) for kind in group.cycle]


def _calls(
    architecture: Architecture,
    positions: Int[Array, "B L"],
    *,
    attend: Attend,
    dropout_rate: float,
    rows: Int[Array, " B"],
) -> dict[LayerKind, Call]:
    """What the layers of each kind are handed; each rotation is computed once."""
    kinds = dict.fromkeys(kind for group in architecture.groups for kind in group.cycle)
    rotations = {rope: rope.rotation(positions) for rope in dict.fromkeys(k.rope for k in kinds)}
    return {
        kind: Call(
            config=architecture.config,
            rotation=rotations[kind.rope],
            pattern=kind.pattern,
            attend=attend,
            dropout_rate=dropout_rate,
            rows=rows,
        )
        for kind in kinds
    }


def _dropout_keys(key: PRNGKeyArray | None, sizes: list[int]) -> list[Any]:
    """A key for the embedding, then for each group one key a layer."""
    if key is None:
        return [None] * (1 + len(sizes))
    embed_key, *rest = jax.random.split(key, 1 + len(sizes))
    return [embed_key, *(jax.random.split(k, size) for k, size in zip(rest, sizes, strict=True))]

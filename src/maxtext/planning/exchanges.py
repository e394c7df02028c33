"""What devices send each other: the collectives that a layout asks for, and their bytes."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import jax.numpy as jnp

from maxtext.models.decoder import Architecture, model_params
from maxtext.models.fusion import Fusion
from maxtext.parallel.layout import Layout, MeshAxes
from maxtext.parallel.params import Param, named_leaves
from maxtext.parallel.serving import ATTN_DP
from maxtext.parallel.stages import stages_from_config
from maxtext.training.setup import Setup
from maxtext.types import DType

type Kind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One collective.

    Attributes:
        what: What it is for.
        kind: What it does.
        axes: The mesh axes that its devices differ in.
        ways: How many do it together.
        num_bytes: Bytes that a device has after it.
        times: How often it is done.
    """

    what: str
    kind: Kind
    axes: tuple[str, ...]
    ways: int
    num_bytes: int
    times: int = 1

    @property
    def bytes_sent(self) -> float:
        """Bytes that a device sends, all times together: the least for its kind, a ring's."""
        others = (self.ways - 1) / self.ways
        shares = {"all-reduce": 2 * others, "reduce-scatter": self.ways - 1.0}
        return self.num_bytes * self.times * shares.get(self.kind, others)


@dataclasses.dataclass(frozen=True)
class Exchanges:
    """Those of one step.

    Attributes:
        layer: Of each layer.
        rest: Of what is before and after the layers.
        num_layers: Layers.
        passes: How often all of it is done.
    """

    layer: tuple[Exchange, ...]
    rest: tuple[Exchange, ...]
    num_layers: int
    passes: int = 1

    @property
    def bytes_per_layer(self) -> float:
        """Bytes that a device sends in one layer."""
        return sum(one.bytes_sent for one in self.layer)

    @property
    def bytes_sent(self) -> float:
        """Bytes that a device sends in a step."""
        outside = sum(one.bytes_sent for one in self.rest)
        return self.passes * (self.bytes_per_layer * self.num_layers + outside)


def serving_exchanges(
    model: Architecture,
    layout: Layout,
    *,
    fusion: Fusion,
    tokens: int,
    sequences: int,
    dtype: DType,
) -> Exchanges:
    """Those of a step of the engine, as the compiler makes them of the layout.

    Args:
        model: Its weights of the type that they are held in.
        layout: With the rules of serving.
        fusion: Which of its weights lie together.
        tokens: Of all ranks, padding included.
        sequences: Of all ranks.
        dtype: Type of activations.
    """
    # Devices that split requests alone have nothing to do with each other.
    data = layout.ways("activation_length")
    layer = fusion.specs(model.groups[0].params)
    own = _Served(layer, tokens // data, sequences // data, tokens, jnp.dtype(dtype))
    many = layout.mesh.shape.get(ATTN_DP, 1) > 1
    made = _attention_dp(model, layout, own) if many else _tensor(model, layout, own)
    vocab, ways = layout.mesh_axes("activation_vocab"), layout.ways("activation_vocab")
    # The highest logit, then its token.
    likeliest = Exchange("likeliest token", "all-reduce", vocab, ways, own.sequences * 4, 2)
    return Exchanges(made.layer, (*made.rest, *_real([likeliest])), len(model.layers))


@dataclasses.dataclass(frozen=True)
class _Served:
    """A layer's weights, and the tokens of the devices that exchange more than weights."""

    layer: Any
    tokens: int
    sequences: int
    in_all: int
    dtype: Any


def _tensor(model: Architecture, layout: Layout, own: _Served) -> Exchanges:
    """Heads, feed-forward and vocabulary are split, the residual stream is not."""
    size = own.tokens * model.config.emb_dim * own.dtype.itemsize
    layer = [
        *_gathers(own.layer, layout, dtype=own.dtype),
        _reduced("attention output", layout.mesh_axes("activation_heads"), layout, size),
        _reduced("feed-forward output", layout.mesh_axes("activation_mlp"), layout, size),
    ]
    head = model_params(model).decoder.logits_dense
    rest = [
        *_lookup(layout, "activation_length", tokens=own.in_all, size=size),
        *([] if head is None else _gathers({"head": head}, layout, dtype=own.dtype)),
    ]
    return Exchanges(_real(layer), _real(rest), len(model.layers))


def _attention_dp(model: Architecture, layout: Layout, own: _Served) -> Exchanges:
    """The residual stream is split by its width over all devices of a supergroup.

    So a norm sums over them; attention gathers tokens of whole width, all of them or those of its
    group, and gives back a part of the width of all.
    """
    config, every = model.config, layout.mesh_axes("activation_embed")
    ways, numbers = layout.ways("activation_embed"), own.dtype.itemsize
    whole = own.tokens * config.emb_dim * numbers
    norm = Exchange("norm", "all-reduce", every, ways, own.tokens * 4)
    gathered = functools.partial(Exchange, kind="all-gather", axes=every, ways=ways)
    norms = sum("norm" in name.split("/")[-2] for name in named_leaves(own.layer))
    qk_norms = 2 if config.use_qk_norm else 0
    layer = [
        dataclasses.replace(norm, times=norms - qk_norms),
        *_around_attention(model, layout, own),
        gathered("feed-forward input", num_bytes=whole),
        _reduced("feed-forward output", every, layout, whole),
    ]
    groups, count = (ATTN_DP,), layout.mesh.shape[ATTN_DP]
    placed = functools.partial(Exchange, kind="all-gather", axes=groups, ways=count)
    # The id of each token; of each sequence where its last token is, and whether it has one.
    rest = [
        placed("places", num_bytes=4 * own.tokens + 5 * own.sequences),
        _reduced("embeddings", every, layout, whole),
        norm,
        gathered("head input", num_bytes=own.sequences * config.emb_dim * numbers),
    ]
    return Exchanges(_real(layer), _real(rest), len(model.layers))


def _around_attention(model: Architecture, layout: Layout, own: _Served) -> list[Exchange]:
    """What brings tokens to the heads and back."""
    config, numbers = model.config, own.dtype.itemsize
    every, ways = layout.mesh_axes("activation_embed"), layout.ways("activation_embed")
    whole = own.tokens * config.emb_dim * numbers
    groups = layout.mesh.shape[ATTN_DP]
    heads, split = layout.ways("activation_heads"), layout.mesh_axes("activation_heads")
    between = functools.partial(Exchange, axes=(ATTN_DP,), ways=groups)
    if layout.ways("attn_projection_length") == layout.ways("attn_activation_length"):
        scale = config.emb_dim // heads * jnp.dtype(model.weight_dtype).itemsize
        return [
            between("tokens to groups", "all-to-all", num_bytes=whole // groups // heads),
            between("norm's scale", "all-gather", num_bytes=scale),
            Exchange("tokens in a group", "all-gather", split, heads, whole // groups),
            _reduced("attention output", split, layout, whole // groups),
            between("tokens from groups", "all-to-all", num_bytes=whole // groups // heads),
        ]
    head_bytes = own.tokens * config.head_dim * numbers // heads
    queries, kv = config.num_query_heads * head_bytes, config.num_kv_heads * head_bytes
    moved = [queries, queries]
    if layout.ways("attn_projection_kv_heads") > heads:
        moved += [kv, kv]
    return [
        Exchange("attention input", "all-gather", every, ways, whole),
        *(between("heads to tokens", "all-to-all", num_bytes=one // groups) for one in moved),
        _reduced("attention output", every, layout, whole),
    ]


def applied(spec: Param, layout: Layout) -> int:
    """Numbers of a weight that a device multiplies tokens with: its own, and those it gathers."""
    return spec.size // _ways(layout, _split(spec, layout)[1])


def _split(spec: Param, layout: Layout) -> tuple[MeshAxes, MeshAxes]:
    """The mesh axes that split a weight: those that split tokens too, and the rest."""
    tokens = _token_axes(layout)
    axes = [axis for name in spec.axes for axis in layout.mesh_axes(name)]
    return (
        tuple(axis for axis in axes if axis in tokens),
        tuple(axis for axis in axes if axis not in tokens),
    )


def _token_axes(layout: Layout) -> MeshAxes:
    names = ("activation_batch", "activation_length")
    return tuple(axis for name in names for axis in layout.mesh_axes(name))


def _gathers(specs: Any, layout: Layout, *, dtype: DType, times: int = 1) -> Iterator[Exchange]:
    """Weights that are split over the axes that split tokens too: each device needs them whole."""
    for name, spec in named_leaves(specs).items():
        gathered, _ = _split(spec, layout)
        size = applied(spec, layout) * jnp.dtype(dtype if spec.num_in else spec.dtype).itemsize
        ways = _ways(layout, gathered)
        yield Exchange(f"weights: {name}", "all-gather", gathered, ways, size, times)


def _reduced(what: str, axes: MeshAxes, layout: Layout, size: int, times: int = 1) -> Exchange:
    return Exchange(what, "all-reduce", axes, _ways(layout, axes), size, times)


def _lookup(layout: Layout, axis: str, *, tokens: int, size: int) -> Iterator[Exchange]:
    """Of the embedding, whose rows or columns lie on several devices.

    Where both are split, the compiler may find another way.

    Args:
        layout: Where it lies.
        axis: The logical axis whose mesh axes split tokens.
        tokens: Of all devices.
        size: Bytes of the embeddings of a device's own tokens.
    """
    split = layout.mesh_axes(axis)
    columns = tuple(name for name in layout.mesh_axes("embed") if name in split)
    if columns:
        ids = tokens // _ways(layout, [name for name in split if name not in columns]) * 4
        ways = _ways(layout, columns)
        yield Exchange("token ids", "all-gather", columns, ways, ids)
        yield Exchange("embeddings", "all-to-all", columns, ways, size)
    yield _reduced("embeddings", layout.mesh_axes("vocab"), layout, size)


def _ways(layout: Layout, axes: Iterable[str]) -> int:
    return math.prod(layout.mesh.shape[axis] for axis in axes)


def _real(exchanges: Iterable[Exchange]) -> tuple[Exchange, ...]:
    """Those between several devices."""
    return tuple(one for one in exchanges if one.ways > 1)


def training_exchanges(setup: Setup, *, scatters: bool) -> Exchanges:
    """Those of a step of training.

    Args:
        setup: The run, on a mesh of data, fsdp and tensor.
        scatters: Whether the compiler makes reduce-scatters of gradients whose weights are split,
            as that for TPUs and GPUs does; on a CPU they stay all-reduces.
    """
    layout, model, compute = setup.layout, setup.architecture, setup.config.compute
    dtype = compute.dtype
    rows, length = setup.batch_shape
    passes = setup.config.training.gradient_accumulation_steps
    tokens = rows // passes * length
    own = tokens // layout.ways("activation_batch") // layout.ways("activation_norm_length")
    size = own * model.config.emb_dim * jnp.dtype(dtype).itemsize
    heads, hidden = layout.mesh_axes("activation_heads"), layout.mesh_axes("activation_mlp")
    stages = stages_from_config(compute)
    kept = not stages.remat or "out_proj" in (*stages.saved, *stages.offloaded)
    weights = setup.fusion.specs(model.groups[0].params)
    # Kernels that read the residual stream: each gives it a gradient of its own.
    kernels = [one.axes[1:] for one in named_leaves(weights).values() if one.axes[0] == "embed"]
    reading = {"mlp": sum("mlp" in axes for axes in kernels)}
    reading["heads"] = len(kernels) - reading["mlp"]
    layer = [
        *_gathers(weights, layout, dtype=dtype, times=2),
        _reduced("attention output", heads, layout, size, 1 if kept else 2),
        _reduced("feed-forward output", hidden, layout, size),
        _reduced("gradients of attention's inputs", heads, layout, size, reading["heads"]),
        _reduced("gradients of the mlp's inputs", hidden, layout, size, reading["mlp"]),
        *_gradients(weights, layout, dtype=dtype, scatters=scatters),
    ]
    specs = model_params(model)
    vocab = layout.mesh_axes("activation_vocab")
    outside = {"embedding": specs.token_embedder, "norm": specs.decoder.decoder_norm}
    head = {"head": specs.decoder.logits_dense or specs.token_embedder}
    rest = [
        *_lookup(layout, "activation_batch", tokens=tokens, size=size),
        *_gathers(head, layout, dtype=dtype, times=2),
        _reduced("gradients of the head's inputs", vocab, layout, size),
        _reduced("terms of the softmax", vocab, layout, own * 4, 3),
        *_gradients(outside | head, layout, dtype=dtype, scatters=scatters),
    ]
    return Exchanges(_real(layer), _real(rest), len(model.layers), passes)


def _gradients(specs: Any, layout: Layout, *, dtype: DType, scatters: bool) -> Iterator[Exchange]:
    """Those of weights, summed over the devices that split tokens."""
    tokens = _token_axes(layout)
    for name, spec in named_leaves(specs).items():
        own, _ = _split(spec, layout)
        size = applied(spec, layout) * jnp.dtype(dtype if spec.num_in else spec.dtype).itemsize
        what = f"gradients: {name}"
        if not scatters or not own:
            yield Exchange(what, "all-reduce", tokens, _ways(layout, tokens), size)
            continue
        part = size // _ways(layout, own)
        copies = tuple(axis for axis in tokens if axis not in own)
        yield Exchange(what, "reduce-scatter", own, _ways(layout, own), part)
        yield Exchange(what, "all-reduce", copies, _ways(layout, copies), part)

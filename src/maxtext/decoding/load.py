"""A config to an engine: weights from a checkpoint, as decoding wants them."""

import dataclasses
import functools
import math
import os
from pathlib import Path
from typing import Any, cast

import jax
from jax.sharding import NamedSharding

from maxtext.config.schema import Config
from maxtext.conversion.loading import load_weights
from maxtext.data.tokenizer import Tokenizer, load_tokenizer
from maxtext.decoding.cache import make_limits
from maxtext.decoding.engine import Engine
from maxtext.decoding.step import Step
from maxtext.layers.linears import Linear
from maxtext.models.backend import config_errors, resolve, set_up_jax
from maxtext.models.decoder import Architecture, Decoder, Model, model_params
from maxtext.models.fusion import NOTHING_FUSED, Fusion, fusion_from_config
from maxtext.models.registry import architecture
from maxtext.ops.dense import Turned
from maxtext.parallel.debug import sharding_log
from maxtext.parallel.layout import Layout, use_layout
from maxtext.parallel.params import Param, abstract, shardings
from maxtext.parallel.serving import serving_layout
from maxtext.types import DType, Weight

# Numbers that a kernel sums over from which on it pays to turn it, as measured.
_LONG = 512


@dataclasses.dataclass(frozen=True, eq=False)
class Served:
    """A model on a mesh, without its weights.

    Attributes:
        config: Resolved.
        layout: With the rules of serving.
        architecture: The model.
        specs: Its weights, declared.
        tokenizer: Its tokenizer.
    """

    config: Config
    layout: Layout
    architecture: Architecture
    specs: Model
    tokenizer: Tokenizer


def prepare(config: Config) -> Served:
    """What `config` describes, on the devices at hand.

    Raises:
        ConfigError: The mesh does not fit, or the tokenizer is none.
    """
    set_up_jax(config.run, config.compute)
    with config_errors():
        tokenizer = load_tokenizer(config.data, vocab_size=config.model.vocab_size)
        # How training attends does not matter here.
        compute = resolve(
            config.compute.model_copy(update={"attention": "dot_product"}),
            config.model,
            backend=jax.default_backend(),
            length=config.data.max_target_length,
        )
        layout = serving_layout(config.mesh, config.model, jax.devices())
        layout = dataclasses.replace(layout, log=sharding_log(config.run, config.run.run_name))
        model = architecture(config.model, weight_dtype=compute.weight_dtype)
        return Served(
            config=config.model_copy(update={"compute": compute}),
            layout=layout,
            architecture=model,
            specs=model_params(model),
            tokenizer=tokenizer,
        )


def load_engine(served: Served) -> Engine:
    """An engine with the weights of `load_parameters_path`, or of the run's newest checkpoint.

    Raises:
        ConfigError: There is no checkpoint, it is damaged or of another model, or weights or cache
            do not fit the devices.
    """
    with config_errors():
        return make_engine(served, load_params(served.config, served.specs, served.layout))


def load_params(config: Config, specs: Model, layout: Layout) -> Model:
    """The weights of `load_parameters_path`, or of the run's newest checkpoint, as they are stored.

    Raises:
        ValueError: As `load_weights`.
    """
    run = Path(config.run.base_output_directory, config.run.run_name)
    with use_layout(layout):
        path = config.checkpoint.load_parameters_path or run
        return load_weights(path, abstract(specs, layout), model=config.model)


def make_engine(served: Served, params: Model) -> Engine:
    """An engine with these weights, which are given up.

    Raises:
        ValueError: The cache does not fit into memory, or holds not even one sequence.
    """
    config, decode = served.config, served.config.decode
    dtype = config.compute.dtype if decode.decode_dtype == "auto" else decode.decode_dtype
    cache_dtype = dtype if decode.kv_cache_dtype == "auto" else decode.kv_cache_dtype
    step = Step(
        architecture=served.architecture,
        dtype=dtype,
        logits_in_float32=config.compute.logits_dot_in_fp32,
        vocab_size=served.tokenizer.vocab_size,
    )
    fusion = fusion_from_config(config.compute)
    with use_layout(served.layout):
        params = engine_params(
            served.architecture, params, served.layout, dtype=dtype, fusion=fusion
        )
        limits = make_limits(
            decode,
            served.architecture,
            served.layout,
            length=config.data.max_target_length,
            cache_dtype=cache_dtype,
            free_bytes=_free_bytes(served.layout),
        )
        return Engine(
            step,
            params,
            served.layout,
            limits,
            cache_dtype=cache_dtype,
            decode=served.tokenizer.decode,
        )


def abstract_params(model: Architecture, layout: Layout, *, dtype: DType) -> Model:
    """The weights that a step takes, as shapes that say where they lie."""
    specs = model_params(model)
    rest = abstract(
        (specs.token_embedder, specs.decoder.decoder_norm, specs.decoder.logits_dense), layout
    )
    groups = {one.name: (abstract(one.params, layout),) * one.size for one in model.groups}
    embedder, decoder_norm, head = rest
    whole = Model(
        token_embedder=embedder,
        decoder=Decoder(groups=groups, decoder_norm=decoder_norm, logits_dense=head),
    )
    return jax.tree.map(lambda one: one.update(dtype=dtype), whole)


def engine_params(
    model: Architecture, params: Model, layout: Layout, *, dtype: DType, fusion: Fusion
) -> Model:
    """Stored weights as an engine's steps take them, noted in the layout's log.

    Those that are handed in are given up.
    """
    params = serving_params(model, params, layout, dtype=dtype, fusion=fusion)
    if layout.log is not None:
        # Before they are turned, so that names and shapes are those of the declared ones.
        layout.log.weights(model_params(model), params, layout=layout, apart=True)
    return as_read(model, params, layout, fusion=fusion)


def serving_params(
    model: Architecture,
    params: Model,
    layout: Layout,
    *,
    dtype: DType,
    fusion: Fusion = NOTHING_FUSED,
) -> Model:
    """Weights with the layers of each group apart and of type `dtype`; `params` are given up.

    Of each layer are fused what `fusion` names.
    """
    groups = {
        group.name: _joined(
            _apart(params.decoder.groups[group.name], group.params, layout, dtype=dtype),
            fusion,
            shardings(fusion.specs(group.params), layout),
        )
        for group in model.groups
    }
    cast = functools.partial(jax.tree.map, lambda x: x.astype(dtype))
    return Model(
        token_embedder=cast(params.token_embedder),
        decoder=Decoder(
            groups=groups,
            decoder_norm=cast(params.decoder.decoder_norm),
            logits_dense=cast(params.decoder.logits_dense),
        ),
    )


def as_read(
    model: Architecture, params: Model, layout: Layout, *, fusion: Fusion = NOTHING_FUSED
) -> Model:
    """What `serving_params` made, as the devices read it fastest; `params` are given up.

    On a CPU kernels are turned that sum over `_LONG` numbers; with fewer, rows are too short.
    """
    if jax.default_backend() != "cpu":
        return params
    groups = {
        group.name: tuple(
            _turned(fusion.specs(group.params), layer, layout)
            for layer in params.decoder.groups[group.name]
        )
        for group in model.groups
    }
    head = _turned(model_params(model).decoder.logits_dense, params.decoder.logits_dense, layout)
    return Model(
        token_embedder=params.token_embedder,
        decoder=dataclasses.replace(params.decoder, groups=groups, logits_dense=head),
    )


def _turned[T](specs: Any, weights: T, layout: Layout) -> T:
    """Weights with long kernels turned; no more than one kernel is held twice at a time."""

    def one(spec: Any, held: Any) -> Any:
        if not isinstance(spec, Linear):
            return held
        param = cast(Param, spec.kernel)
        if math.prod(param.shape[dim] for dim in param.in_dims) < _LONG:
            return held
        order = (*param.out_dims, *param.in_dims)
        axes, shape = zip(*((param.axes[dim], param.shape[dim]) for dim in order), strict=True)
        rows = jax.block_until_ready(_turn(held.kernel, order, layout.sharding(axes, shape)))
        held.kernel.delete()
        return Linear(kernel=cast(Weight, Turned(rows=rows)), bias=held.bias)

    return jax.tree.map(one, specs, weights, is_leaf=lambda spec: isinstance(spec, Linear))


# Layers of one shape share the program.
@functools.partial(jax.jit, static_argnums=(1, 2))
def _turn(kernel: jax.Array, order: tuple[int, ...], sharding: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(kernel.transpose(order), sharding)


def _joined(layers: list[Any], fusion: Fusion, places: Any) -> tuple[Any, ...]:
    """The layers with their projections fused; no more than one layer is held twice at a time."""
    if fusion == NOTHING_FUSED:
        return tuple(layers)
    join = jax.jit(fusion.joined, out_shardings=places)
    for index, layer in enumerate(layers):
        layers[index] = jax.block_until_ready(join(layer))
        # Else the loop holds the last layer while the next one is made.
        del layer
    return tuple(layers)


def _apart(stacked: Any, specs: Any, layout: Layout, *, dtype: DType) -> list[Any]:
    """One tree a layer; no more than one weight of all layers is held twice at a time."""
    leaves, treedef = jax.tree.flatten(stacked)
    parts: list[list[jax.Array]] = []
    for leaf, sharding in zip(leaves, jax.tree.leaves(shardings(specs, layout)), strict=True):
        size = leaf.shape[0]
        split = jax.jit(
            lambda leaf: [one.astype(dtype) for one in leaf], out_shardings=[sharding] * size
        )
        parts.append(jax.block_until_ready(split(leaf)))
        leaf.delete()
    return [treedef.unflatten(one) for one in zip(*parts, strict=True)]


def _free_bytes(layout: Layout) -> int:
    """Bytes of a device that are free, summed over the devices of one rank."""
    devices = layout.mesh.devices.flatten()
    stats = devices[0].memory_stats() or {}
    if "bytes_limit" in stats:
        each = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
        return each * len(devices) // layout.ways("pages")
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return free // layout.ways("pages")

"""What the engine will do on a mesh: weights, cache, sequences, steps."""

import dataclasses
from collections.abc import Iterator, Mapping

from maxtext.config.schema import Config
from maxtext.decoding.batch import Shapes
from maxtext.decoding.cache import cache_bytes, make_limits
from maxtext.decoding.scheduler import Limits
from maxtext.decoding.step import StepShape
from maxtext.layers.paged import cached_heads
from maxtext.models.backend import resolve
from maxtext.models.decoder import Architecture, model_params
from maxtext.models.fusion import Fusion, fusion_from_config
from maxtext.models.registry import architecture
from maxtext.parallel.layout import Layout
from maxtext.parallel.params import named_leaves
from maxtext.parallel.serving import serving_layout
from maxtext.planning.devices import Device, planned_devices
from maxtext.planning.exchanges import Exchanges, applied, serving_exchanges
from maxtext.planning.holdings import Holding, holdings
from maxtext.planning.roofline import Seconds, seconds
from maxtext.planning.weights import WeightGroup, weight_groups
from maxtext.types import DType


@dataclasses.dataclass(frozen=True)
class Heads:
    """Heads on a device.

    Attributes:
        projected: Query heads that it projects to and from.
        attending: Query heads that attend there, of the requests that it holds.
        kv: Key and value heads that it projects to.
        cached: Heads of the cache.
    """

    projected: int
    attending: int
    kv: int
    cached: int


@dataclasses.dataclass(frozen=True)
class EngineStep:
    """One step of the engine.

    Attributes:
        tokens: Of all ranks.
        sequences: Of all ranks, each as long as the longest.
        argument_bytes: What the program is given, a device: weights, cache and numbers.
        weight_bytes: Weights that a device reads.
        cache_bytes: Of the cache, what a device reads.
        flops: Products on a device.
        exchanges: What devices send each other; None where that is not known.
        seconds: How long it takes at best; None where the device or `exchanges` is not known.
    """

    tokens: int
    sequences: int
    argument_bytes: int
    weight_bytes: int
    cache_bytes: int
    flops: float
    exchanges: Exchanges | None
    seconds: Seconds | None


@dataclasses.dataclass(frozen=True)
class Fit:
    """What fits beside the weights.

    Attributes:
        free_bytes: On a device, once weights are loaded; negative where they do not fit.
        pages: Of a rank, that fit into `kv_cache_memory_fraction` of it.
        sequences: Of `length` tokens, on all ranks.
        length: Tokens of a sequence.
    """

    free_bytes: int
    pages: int
    sequences: int
    length: int


@dataclasses.dataclass(frozen=True)
class ServingPlan:
    """What serving does.

    Attributes:
        mesh: The mesh axes that split anything, and their sizes.
        ranks: Groups of devices, each with requests and pages of its own.
        dtype: Of weights and activations.
        cache_dtype: Of cached keys and values.
        weights: By group.
        heads: On a device.
        holdings: Of each device.
        cache_bytes_per_token: On each device of the rank that holds the token.
        fit: In the memory that there is.
        decode: A step of one token for as many sequences as run at once; None where none fits.
        prefill: A step that is full of a prompt.
        not_counted: What is left out of all this.
    """

    mesh: Mapping[str, int]
    ranks: int
    dtype: str
    cache_dtype: str
    weights: tuple[WeightGroup, ...]
    heads: Heads
    holdings: tuple[Holding, ...]
    cache_bytes_per_token: float
    fit: Fit
    decode: EngineStep | None
    prefill: EngineStep | None
    not_counted: tuple[str, ...]

    @property
    def weight_bytes(self) -> int:
        """Of a device."""
        return sum(group.bytes_per_device for group in self.weights)


@dataclasses.dataclass(frozen=True, eq=False)
class _Engine:
    """What the numbers of a step are derived from; `page_bytes` are a device's."""

    model: Architecture
    fusion: Fusion
    layout: Layout
    limits: Limits
    weights: tuple[WeightGroup, ...]
    dtype: DType
    page_bytes: int
    device: Device | None


def plan_serving(
    config: Config, *, num_devices: int, hbm_bytes: int, device: Device | None
) -> ServingPlan:
    """What serving `config` does.

    Raises:
        ValueError: The mesh does not fit the devices or the model.
    """
    layout = serving_layout(config.mesh, config.model, planned_devices(num_devices))
    if layout.mesh.shape.get("stage", 1) > 1:
        raise ValueError("stages are for training: tokens are sampled one by one")
    compute = resolve(
        config.compute.model_copy(update={"attention": "dot_product"}),
        config.model,
        backend="gpu" if device is None else device.backend,
        length=config.data.max_target_length,
    )
    decode = config.decode
    dtype = compute.dtype if decode.decode_dtype == "auto" else decode.decode_dtype
    cache_dtype = dtype if decode.kv_cache_dtype == "auto" else decode.kv_cache_dtype
    model = architecture(config.model, weight_dtype=dtype)
    fusion = fusion_from_config(compute)
    weights = weight_groups(fusion.specs(model_params(model)), layout)
    page = Limits(
        num_ranks=layout.ways("pages"),
        max_num_seqs=1,
        max_num_batched_tokens=1,
        num_pages=1,
        page_size=decode.page_size,
        max_length=config.data.max_target_length,
        prefix_caching=False,
    )
    ways = layout.ways("cache_heads")
    page_bytes = cache_bytes(model, layout, page, cache_dtype) // ways
    fit = _fit(config, layout, hbm_bytes - sum(w.bytes_per_device for w in weights), page_bytes)
    steps: list[EngineStep | None] = [None, None]
    if fit.pages > 0:
        limits = make_limits(
            decode,
            model,
            layout,
            length=fit.length,
            cache_dtype=cache_dtype,
            free_bytes=fit.free_bytes * ways,
        )
        engine = _Engine(model, fusion, layout, limits, weights, dtype, page_bytes, device)
        steps = [_decode(engine), _prefill(engine)]
    return ServingPlan(
        mesh={name: size for name, size in layout.mesh.shape.items() if size > 1},
        ranks=page.num_ranks,
        dtype=str(dtype),
        cache_dtype=str(cache_dtype),
        weights=weights,
        heads=_heads(model, layout),
        holdings=holdings(config.model, layout),
        cache_bytes_per_token=page_bytes / decode.page_size,
        fit=fit,
        decode=steps[0],
        prefill=steps[1],
        not_counted=tuple(_not_counted(layout)),
    )


def _not_counted(layout: Layout) -> Iterator[str]:
    yield "what a step needs while it runs, which kv_cache_memory_fraction leaves room for"
    if _splits_rows(layout):
        yield "collectives: what passes between devices of context is not known"


def _splits_rows(layout: Layout) -> bool:
    return layout.mesh.shape.get("context", 1) > 1


def _fit(config: Config, layout: Layout, free_bytes: int, page_bytes: int) -> Fit:
    length, decode = config.data.max_target_length, config.decode
    pages = max(0, int(free_bytes * decode.kv_cache_memory_fraction) // page_bytes)
    sequences = pages // -(-length // decode.page_size) * layout.ways("pages")
    return Fit(free_bytes, pages, sequences, length)


def _heads(model: Architecture, layout: Layout) -> Heads:
    config = model.config
    return Heads(
        projected=config.num_query_heads // layout.ways("heads"),
        attending=config.num_query_heads // layout.ways("activation_heads"),
        kv=config.num_kv_heads // layout.ways("kv_heads"),
        cached=cached_heads(layout, config.num_kv_heads) // layout.ways("cache_heads"),
    )


def _decode(engine: _Engine) -> EngineStep:
    """A token for each of as many sequences of full length as the pages hold."""
    limits = engine.limits
    table = -(-limits.max_length // limits.page_size)
    running = max(1, min(limits.max_num_seqs, limits.num_pages // table))
    shapes = [one for one in Shapes(limits).all() if one.tokens == one.sequences >= running]
    return _step(engine, shapes[0], running=running, length=limits.max_length)


def _prefill(engine: _Engine) -> EngineStep:
    """The last tokens of a prompt of full length on each rank."""
    limits = engine.limits
    tokens = min(limits.max_num_batched_tokens, limits.max_length)
    shapes = [one for one in Shapes(limits).all() if one.tokens >= tokens and one.sequences == 1]
    return _step(engine, shapes[-1], running=1, length=limits.max_length - tokens / 2)


def _step(engine: _Engine, shape: StepShape, *, running: int, length: float) -> EngineStep:
    """A step of every rank.

    Args:
        engine: Whose.
        shape: As it is compiled.
        running: Sequences of a rank.
        length: Tokens that each of its tokens attends to.
    """
    model, layout = engine.model, engine.layout
    tokens, sequences = shape.tokens * shape.ranks, shape.sequences * shape.ranks
    exchanges = None
    if not _splits_rows(layout):
        exchanges = serving_exchanges(
            model,
            layout,
            fusion=engine.fusion,
            tokens=tokens,
            sequences=sequences,
            dtype=engine.dtype,
        )
    tied = model.config.logits_via_embedding
    read = sum(w.bytes_per_device for w in engine.weights if tied or w.name != "embedding")
    seen = sum(min(kind.pattern.window or length, length) for kind in model.layers)
    token_bytes = engine.page_bytes / engine.limits.page_size / len(model.layers)
    cached = round(running * seen * token_bytes)
    flops = _flops(engine, shape, seen=seen)
    held = sum(w.bytes_per_device for w in engine.weights)
    return EngineStep(
        tokens=tokens,
        sequences=sequences,
        argument_bytes=held + engine.page_bytes * engine.limits.num_pages + shape.width * 4,
        weight_bytes=read,
        cache_bytes=cached,
        flops=flops,
        exchanges=exchanges,
        seconds=seconds(engine.device, flops=flops, hbm=read + cached, exchanges=exchanges),
    )


def _flops(engine: _Engine, shape: StepShape, *, seen: float) -> float:
    """Products on a device; `seen` are the tokens that one token attends to, over all layers."""
    model, layout = engine.model, engine.layout
    tokens = shape.tokens * shape.ranks
    kv_tokens = tokens // layout.ways("attn_projection_kv_length")
    at_work = {
        "key": kv_tokens,
        "value": kv_tokens,
        "self_attention": tokens // layout.ways("attn_projection_length"),
        "mlp": tokens // layout.ways("activation_length"),
        "logits_dense": shape.sequences * shape.ranks // layout.ways("activation_length"),
    }
    if model.config.logits_via_embedding:
        at_work["token_embedder"] = at_work["logits_dense"]
    total = 0.0
    for name, spec in named_leaves(engine.fusion.specs(model_params(model))).items():
        part = next((one for one in at_work if one in name.split("/")), None)
        if part is not None and spec.num_in:
            total += 2 * at_work[part] * applied(spec, layout)
    heads = model.config.num_query_heads // layout.ways("activation_heads")
    attending = tokens // layout.ways("attn_activation_length")
    return total + 4 * heads * model.config.head_dim * seen * attending

"""Pipelines that cannot be, found from the config and the number of stages."""

from collections.abc import Iterator, Set

from maxtext.config.errors import Clash
from maxtext.config.numbers import divisors, listed
from maxtext.config.schema import Config
from maxtext.config.schema_pipeline import PipelineConfig

_COUNTS = ("num_pipeline_repeats", "pipeline_parallel_layers", "num_pipeline_microbatches")
_REMAT = ("set_remat_policy_on_pipeline_iterations", "set_remat_policy_on_layers_per_stage")


def clashes(config: Config, user_keys: Set[str]) -> Iterator[Clash]:
    """Everything wrong with how layers and batches go through stages, where the config has any.

    A degree of -1 leaves their number to the devices: who counts these asks `stage_clashes`.
    """
    mesh = config.mesh
    degrees = (mesh.ici_pipeline_parallelism, mesh.dcn_pipeline_parallelism)
    stages = degrees[0] * degrees[1]
    counts = config.pipeline.model_dump(include=set(_COUNTS)).values()
    if min(degrees) < 1 or 0 in counts:
        return
    if stages > 1:
        yield from stage_clashes(config, stages)
    for key in PipelineConfig.model_fields:
        if stages == 1 and key in user_keys:
            message = "would be ignored: there are no pipeline stages"
            hint = "set ici_pipeline_parallelism, or leave it out"
            yield Clash((key, "ici_pipeline_parallelism"), message, hint)
    for key in _REMAT:
        if config.compute.remat_policy == "none" and key in user_keys:
            message = "would be ignored: nothing is computed again"
            yield Clash((key, "remat_policy"), message, "leave it out")


def stage_clashes(config: Config, stages: int) -> Iterator[Clash]:
    """Everything wrong with the config for so many stages, of which there are two or more."""
    yield from _layers(config, stages)
    yield from _microbatches(config.pipeline, stages)


def piped_layers(config: Config) -> int:
    """Layers that are to lie in stages."""
    asked = config.pipeline.pipeline_parallel_layers
    return config.model.num_decoder_layers if asked == -1 else asked


def fewest_microbatches(pipeline: PipelineConfig, stages: int) -> int:
    """Microbatches that keep every stage busy, once they go round."""
    return stages * (2 if pipeline.pipeline_delay_activation_forwarding else 1)


def _layers(config: Config, stages: int) -> Iterator[Clash]:
    pipeline, layers = config.pipeline, config.model.num_decoder_layers
    piped, repeats = piped_layers(config), pipeline.num_pipeline_repeats
    round_size = stages * pipeline.num_layers_per_pipeline_stage
    of_round = f"{stages} stages x {pipeline.num_layers_per_pipeline_stage} layers"
    keys = ("num_layers_per_pipeline_stage", "pipeline_parallel_layers")
    where = ("base_num_decoder_layers", "ici_pipeline_parallelism", "dcn_pipeline_parallelism")
    if piped > layers:
        most = layers - layers % round_size
        hint = f"use pipeline_parallel_layers={most}" if most else ""
        yield Clash((keys[1],), f"the model has {layers} layers", hint)
    elif piped % round_size:
        hints: list[str] = []
        if piped % stages == 0:
            works = listed(divisors(piped // stages), near=pipeline.num_layers_per_pipeline_stage)
            hints.append(f"num_layers_per_pipeline_stage may be {works}")
        if most := piped - piped % round_size:
            hints.append(f"pipeline_parallel_layers={most} runs the others outside of stages")
        message = f"{piped} layers do not divide over {of_round}"
        yield Clash((*keys, *where), message, "; ".join(hints) or "use fewer stages")
    elif repeats not in (-1, piped // round_size):
        hints = [f"use num_pipeline_repeats={piped // round_size}"]
        if round_size * repeats <= layers:
            hints.append(f"pipeline_parallel_layers={round_size * repeats}")
        message = f"{of_round} x {repeats} repeats are {round_size * repeats} layers, not {piped}"
        yield Clash(("num_pipeline_repeats", *keys), message, ", or ".join(hints))


def _microbatches(pipeline: PipelineConfig, stages: int) -> Iterator[Clash]:
    given, fewest = pipeline.num_pipeline_microbatches, fewest_microbatches(pipeline, stages)
    if given == -1 or (given % stages == 0 and given >= fewest):
        return
    lower = max(fewest, given - given % stages)
    higher = max(lower + stages, -(-given // stages) * stages)
    yield Clash(
        ("num_pipeline_microbatches",),
        f"must be a multiple of the {stages} stages and at least {fewest}",
        f"use {lower} or {higher}",
    )

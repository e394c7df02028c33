"""The pipeline of a run: from the config, once the devices have said how many stages there are."""

from collections.abc import Sequence

from maxtext.config.derive_pipeline import fewest_microbatches, piped_layers, stage_clashes
from maxtext.config.numbers import divisors, listed
from maxtext.config.schema import Config
from maxtext.models.decoder import Architecture
from maxtext.models.layer_kinds import LayerKind
from maxtext.parallel.layout import Layout
from maxtext.parallel.pipeline import STAGE, Pipeline, stage_layout


def choose_pipeline(config: Config, architecture: Architecture, layout: Layout) -> Pipeline | None:
    """How layers run in the stages of the mesh; None where it has but one.

    Raises:
        ValueError: The layers or microbatches do not fit the stages.
    """
    stages = layout.mesh.shape.get(STAGE, 1)
    if stages == 1:
        return None
    keys = config.pipeline
    for clash in stage_clashes(config, stages):
        value = getattr(keys, clash.keys[0])
        raise ValueError(f"{clash.keys[0]}={value}: {clash.message}; {clash.hint}")
    _check_kinds(architecture, layers=piped_layers(config), stages=stages, config=config)
    per_stage, microbatches = keys.num_layers_per_pipeline_stage, keys.num_pipeline_microbatches
    return Pipeline(
        num_stages=stages,
        layers_per_stage=per_stage,
        num_repeats=piped_layers(config) // (stages * per_stage),
        num_microbatches=fewest_microbatches(keys, stages) if microbatches == -1 else microbatches,
        delayed=keys.pipeline_delay_activation_forwarding,
        gather_once=keys.pipeline_fsdp_ag_once,
        remat_iterations=keys.set_remat_policy_on_pipeline_iterations,
        remat_layers=keys.set_remat_policy_on_layers_per_stage,
        scan=keys.scan_pipeline_iterations,
    )


def check_microbatches(pipeline: Pipeline, layout: Layout, *, key: str, rows: int) -> None:
    """Holds the rows of a forward pass against the microbatches that they are taken in.

    Raises:
        ValueError: They do not divide; names what does.
    """
    ways = stage_layout(layout).ways("activation_batch")
    unit = ways * pipeline.num_microbatches
    if rows % unit == 0:
        return
    fewest = pipeline.num_stages * pipeline.hop
    works = [
        count
        for count in divisors(rows // ways)
        if rows % ways == 0 and count % pipeline.num_stages == 0 and count >= fewest
    ]
    hint = f"use a multiple of {unit / layout.mesh.size:g}"
    if works:
        near = listed(works, near=pipeline.num_microbatches)
        hint += f", or num_pipeline_microbatches may be {near}"
    raise ValueError(
        f"{key}: {rows} rows a forward pass do not divide over {pipeline.num_microbatches} "
        f"pipeline microbatches x the {ways} devices that split each; {hint}"
    )


def _check_kinds(architecture: Architecture, *, layers: int, stages: int, config: Config) -> None:
    """Stages run one program, so the layers at one place of all of them must be of one kind."""
    per_stage = config.pipeline.num_layers_per_pipeline_stage
    periods = _periods(architecture.layers[:layers])
    if per_stage in periods:
        return
    works = [count for count in divisors(layers // stages) if count in periods]
    every, period = len(architecture.layers), min(_periods(architecture.layers))
    if works:
        hint = f"it may be {listed(works, near=per_stage)}"
    elif stages * period <= every:
        hint = f"use {period}, and a multiple of {stages * period} as pipeline_parallel_layers"
    else:
        hint = f"use {period}, and at most {every // period} stages"
    raise ValueError(
        f"num_layers_per_pipeline_stage={per_stage}: {config.model.decoder_block} has layers of "
        f"several kinds, in an order that must be the same at every stage; {hint}"
    )


def _periods(kinds: Sequence[LayerKind]) -> list[int]:
    """After how many layers their kinds repeat."""
    return [
        count
        for count in range(1, len(kinds) + 1)
        if all(kind == kinds[place % count] for place, kind in enumerate(kinds))
    ]

"""The keys of pipelines: layers in stages on different devices."""

from pydantic import PositiveInt as Positive

from maxtext.config.section import Count, Section, key


class PipelineConfig(Section):
    """How layers and batches go through pipeline stages; no result depends on it."""

    num_layers_per_pipeline_stage: Positive = key(
        "Layers that follow each other at a stage. A multiple of the period of `gemma2` (2) and "
        "`gemma3` (6)."
    )
    num_pipeline_repeats: Count = key(
        "Times that a microbatch goes round all stages, through other layers each time (the "
        "circular schedule); -1: as often as `pipeline_parallel_layers` asks for."
    )
    pipeline_parallel_layers: Count = key(
        "Layers in stages, the first ones; all devices run the others. -1: all, or as many as "
        "`num_pipeline_repeats` asks for. Stages * `num_layers_per_pipeline_stage` * "
        "`num_pipeline_repeats`."
    )
    num_pipeline_microbatches: Count = key(
        "Parts of the batch of a forward pass that follow each other through the stages; -1: the "
        "fewest. A multiple of the stages, and at least twice as many with "
        "`pipeline_delay_activation_forwarding`."
    )
    pipeline_delay_activation_forwarding: bool = key(
        "Hand on what a stage makes one iteration late, while the next one is computed, so that no "
        "stage waits for the network. The pipeline takes longer to fill."
    )
    pipeline_fsdp_ag_once: bool = key(
        "Gather weights that are split over `fsdp` once a step, not in each iteration: less "
        "traffic, more memory."
    )
    scan_pipeline_iterations: bool = key(
        "Iterations in a loop. False unrolls them: slower to compile, at times faster."
    )
    set_remat_policy_on_pipeline_iterations: bool = key(
        "Apply `remat_policy` to each iteration: between forward and backward pass a stage keeps "
        "its input, and what the policy names."
    )
    set_remat_policy_on_layers_per_stage: bool = key(
        "Apply `remat_policy` to each layer of a stage."
    )

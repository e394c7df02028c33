"""Settings about what a run writes and starts from that exclude each other."""

from collections.abc import Iterator, Set

from maxtext.config.errors import Clash
from maxtext.config.schema import Config
from maxtext.config.schema_training import CheckpointConfig, ProfileConfig, TrainingConfig


def clashes(config: Config, user_keys: Set[str]) -> Iterator[Clash]:
    """Everything of the kind in the config of a training run, as `derive.clashes`."""
    yield from _start(config.checkpoint, config.run.run_name)
    yield from _retention(config.checkpoint, config.training)
    yield from _local(config.checkpoint, config.run.base_output_directory)
    yield from _profiler(config.profile, config.training.steps, user_keys)


def _start(checkpoint: CheckpointConfig, run_name: str) -> Iterator[Clash]:
    if checkpoint.load_parameters_path and checkpoint.load_full_state_path:
        yield Clash(
            ("load_parameters_path", "load_full_state_path"),
            "a run starts from one checkpoint",
            "load_parameters_path takes the weights only, load_full_state_path all; keep one",
        )
    if checkpoint.restore_step < 0:
        return
    if not run_name:
        message = "says which step of a run to resume from, and run_name is empty"
        yield Clash(("restore_step", "run_name"), message, "give the run_name")
    if not checkpoint.enable_checkpointing:
        message = "nothing is resumed without checkpoints"
        hint = "set enable_checkpointing=true, or restore_step=-1"
        yield Clash(("restore_step", "enable_checkpointing"), message, hint)


def _retention(checkpoint: CheckpointConfig, training: TrainingConfig) -> Iterator[Clash]:
    every, keep = checkpoint.checkpoint_period, checkpoint.checkpoint_keep_period
    if keep > 0 and keep % every:
        yield Clash(
            ("checkpoint_keep_period", "checkpoint_period"),
            "only steps that are saved can be kept",
            f"use a multiple of {every}, such as {max(1, round(keep / every)) * every}",
        )
    best = checkpoint.num_best_checkpoints_to_keep
    for key, wanted in (
        ("checkpoint_keep_period", keep > 0),
        ("num_best_checkpoints_to_keep", best),
    ):
        if wanted and checkpoint.max_num_checkpoints_to_keep == -1:
            message = "would be ignored: all checkpoints are kept"
            hint = "set max_num_checkpoints_to_keep to the number of newest ones to keep"
            yield Clash((key, "max_num_checkpoints_to_keep"), message, hint)
    if not best:
        return
    keys = ("num_best_checkpoints_to_keep", "eval_interval")
    if training.eval_interval < 1:
        message = "there is no evaluation between steps that could tell the best"
        yield Clash(keys, message, f"set eval_interval={every}")
    elif every % training.eval_interval and training.eval_interval % every:
        message = "steps that are saved are not those that are evaluated"
        hint = "let one of checkpoint_period and eval_interval be a multiple of the other"
        yield Clash((*keys, "checkpoint_period"), message, hint)


def _local(checkpoint: CheckpointConfig, output: str) -> Iterator[Clash]:
    directory, period = checkpoint.local_checkpoint_directory, checkpoint.local_checkpoint_period
    keys = ("local_checkpoint_directory", "local_checkpoint_period")
    if not directory and not period:
        return
    if not directory or not period:
        yield Clash(keys, "one needs the other", "set both, or neither")
    elif not checkpoint.enable_checkpointing:
        message = "no checkpoints are written at all"
        yield Clash((keys[0], "enable_checkpointing"), message, "set enable_checkpointing=true")
    elif directory.rstrip("/") == output.rstrip("/"):
        message = "must be another folder than that of the run"
        yield Clash((keys[0], "base_output_directory"), message, "name one on a faster disk")
    elif period >= checkpoint.checkpoint_period:
        yield Clash(
            (keys[1], "checkpoint_period"),
            "local checkpoints must come more often than the others",
            f"use less than {checkpoint.checkpoint_period}",
        )


def _profiler(profile: ProfileConfig, steps: int, user_keys: Set[str]) -> Iterator[Clash]:
    keys = ("skip_first_n_steps_for_profiler", "profiler_steps")
    if not profile.profiler:
        for key in keys:
            if key in user_keys:
                message = "would be ignored: nothing is traced"
                yield Clash((key, "profiler"), message, "add profiler=xplane, or leave it out")
        return
    end = profile.skip_first_n_steps_for_profiler + profile.profiler_steps
    if end > steps:
        message = f"the trace would end after {end} steps, which the run does not have"
        yield Clash(
            (*keys, "steps", "profiler"), message, f"use at least steps={end}, or lower them"
        )

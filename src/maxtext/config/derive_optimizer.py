"""Settings of optimizer and schedule that exclude each other."""

import re
from collections.abc import Iterator, Mapping, Set

from maxtext.config.errors import Clash
from maxtext.config.schema import Config
from maxtext.config.schema_training import OptimizerConfig, TrainingConfig

_ADAM = ("adamw", "muon")
_OPTIMIZERS: Mapping[str, tuple[str, ...]] = {
    "adam_b1": _ADAM,
    "adam_b2": _ADAM,
    "adam_eps": _ADAM,
    "adam_eps_root": _ADAM,
    "adam_weight_decay": _ADAM,
    "muon_beta": ("muon",),
    "muon_weight_decay": ("muon",),
    "muon_consistent_rms": ("muon",),
    "lion_b1": ("lion",),
    "lion_b2": ("lion",),
    "lion_weight_decay": ("lion",),
    "sgd_momentum": ("sgd",),
    "sgd_weight_decay": ("sgd",),
    "adafactor_weight_decay": ("adafactor",),
    "mu_dtype": ("adamw", "muon", "lion", "sgd"),
}


def clashes(config: Config, user_keys: Set[str]) -> Iterator[Clash]:
    """Everything wrong with how updates are made that only several keys together can show.

    Args:
        config: Valid by the schema.
        user_keys: The keys that the user set, rather than the defaults or a model file.
    """
    yield from _ignored(config.optimizer, user_keys)
    yield from _patterns(config.optimizer)
    yield from _lengths(config.optimizer, config.training)


def _ignored(optimizer: OptimizerConfig, user_keys: Set[str]) -> Iterator[Clash]:
    kind = optimizer.opt_type
    for key, kinds in _OPTIMIZERS.items():
        if key in user_keys and kind not in kinds:
            message = "would be ignored: this optimizer does not use it"
            yield Clash((key, "opt_type"), message, f"leave it out, or use opt_type={kinds[0]}")
    if "mu_dtype" in user_keys and kind == "sgd" and not optimizer.sgd_momentum:
        message = "would be ignored: SGD without momentum keeps none"
        yield Clash(("mu_dtype", "sgd_momentum"), message, "set sgd_momentum=0.9, or leave it out")
    for key in ("wsd_decay_steps_fraction", "wsd_decay_style"):
        if key in user_keys and optimizer.lr_schedule_type != "wsd":
            message, hint = "would be ignored: the schedule is not wsd", "set lr_schedule_type=wsd"
            yield Clash((key, "lr_schedule_type"), message, f"{hint}, or leave it out")
    for key in ("skip_step_interval", "skip_step_scaling_factor"):
        if key in user_keys and not optimizer.skip_step_on_spikes:
            message, hint = "would be ignored: no step is skipped", "set skip_step_on_spikes=true"
            yield Clash((key, "skip_step_on_spikes"), message, f"{hint}, or leave it out")


def _patterns(optimizer: OptimizerConfig) -> Iterator[Clash]:
    for pattern in optimizer.trainable_parameters_mask:
        try:
            re.compile(pattern)
        except re.error as error:
            message = f"{pattern!r} is not a regular expression: {error}"
            yield Clash(("trainable_parameters_mask",), message)


def _lengths(optimizer: OptimizerConfig, training: TrainingConfig) -> Iterator[Clash]:
    if optimizer.lr_schedule_type == "constant":
        return
    length_key, length = "learning_rate_schedule_steps", optimizer.learning_rate_schedule_steps
    if length < 1:
        length_key, length = "steps", training.steps
    warmup = round(optimizer.warmup_steps_fraction * length)
    decay = round(optimizer.wsd_decay_steps_fraction * length)
    if optimizer.lr_schedule_type == "wsd" and warmup + decay > length:
        yield Clash(
            ("warmup_steps_fraction", "wsd_decay_steps_fraction", length_key),
            f"{warmup} steps of warm-up and {decay} of decay are more than {length}",
            "use smaller fractions, of at most 1 together",
        )
    if optimizer.lr_schedule_type == "cosine" and length > 1 and warmup >= length:
        yield Clash(
            ("warmup_steps_fraction", length_key, "lr_schedule_type"),
            "warm-up takes all steps and leaves none for the cosine",
            "use a smaller fraction, or lr_schedule_type=constant",
        )
    if length < training.steps and optimizer.learning_rate_final_fraction == 0:
        yield Clash(
            ("learning_rate_schedule_steps", "steps", "learning_rate_final_fraction"),
            f"the last {training.steps - length} steps would train at rate 0",
            f"use steps={length}, learning_rate_schedule_steps=-1, or a final fraction above 0",
        )

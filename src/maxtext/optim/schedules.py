"""Learning-rate schedules."""

import math
from collections.abc import Callable

from maxtext.config.schema_training import OptimizerConfig

type Schedule = Callable[[int], float]


def schedule_length(config: OptimizerConfig, *, steps: int) -> int:
    """Steps of the schedule, `steps` where the config leaves it to them."""
    own = config.learning_rate_schedule_steps
    return own if own > 0 else steps


def schedule(config: OptimizerConfig, *, steps: int) -> Schedule:
    """The learning rate of each step, counted from 0.

    Linear from 0 over `warmup_steps_fraction` of the schedule: of w warm-up steps, step n gets
    n / w of the highest rate, so step w is the first at the full rate. Then constant (`constant`),
    half a cosine down to `learning_rate_final_fraction` of it (`cosine`), or constant until the
    last `wsd_decay_steps_fraction` of the schedule, in which it goes there (`wsd`). After the
    schedule the last rate stays.

    Source: Loshchilov and Hutter 2016, arXiv:1608.03983, equation 5, without restarts; Hu et al.
        2024, arXiv:2404.06395, section 4.2 (wsd).

    Args:
        config: The optimizer's keys.
        steps: Length of the schedule where `learning_rate_schedule_steps` is -1.
    """
    length = schedule_length(config, steps=steps)
    peak, final = config.learning_rate, config.learning_rate_final_fraction
    warmup = round(config.warmup_steps_fraction * length)
    decay = {
        "constant": 0,
        "cosine": max(1, length - warmup),
        "wsd": round(config.wsd_decay_steps_fraction * length),
    }[config.lr_schedule_type]
    start = warmup if config.lr_schedule_type == "cosine" else length - decay
    linear = config.lr_schedule_type == "wsd" and config.wsd_decay_style == "linear"

    def rate(step: int) -> float:
        if step < warmup:
            return peak * step / warmup
        if decay == 0 or step <= start:
            return peak
        part = min(1.0, (step - start) / decay)
        left = 1.0 - part if linear else (1.0 + math.cos(math.pi * part)) / 2
        return peak * (final + (1.0 - final) * left)

    return rate

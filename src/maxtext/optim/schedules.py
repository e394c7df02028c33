"""Learning-rate schedules."""

import optax

from maxtext.config.schema import OptimizerConfig


def schedule(config: OptimizerConfig, *, steps: int) -> optax.Schedule:
    """The learning rate of each step, counted from 0.

    Linear from 0 over `warmup_steps_fraction` of the schedule: of w warm-up steps, step n gets
    n / w of the highest rate, so step w is the first at the full rate. Then half a cosine down to
    `learning_rate_final_fraction`, or constant. After the schedule the last rate stays.

    Args:
        config: The optimizer's keys.
        steps: Length of the schedule where `learning_rate_schedule_steps` is -1.
    """
    if config.learning_rate_schedule_steps > 0:
        steps = config.learning_rate_schedule_steps
    warmup = round(config.warmup_steps_fraction * steps)
    peak = config.learning_rate
    if config.lr_schedule_type == "constant":
        after = optax.constant_schedule(peak)
    else:
        after = optax.cosine_decay_schedule(
            peak, max(1, steps - warmup), alpha=config.learning_rate_final_fraction
        )
    if warmup == 0:
        return after
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), after], [warmup])

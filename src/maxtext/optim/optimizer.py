"""Optimizers as optax chains, and where their state lies."""

from typing import Any

import jax
import optax

from maxtext.config.schema import OptimizerConfig
from maxtext.parallel.layout import Layout
from maxtext.parallel.params import path_name


def optimizer(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    """AdamW, after clipping by the global norm where that is asked for.

    Source: Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2.
    """
    adamw = optax.adamw(
        rate,
        b1=config.adam_b1,
        b2=config.adam_b2,
        eps=config.adam_eps,
        eps_root=config.adam_eps_root,
        mu_dtype=config.mu_dtype or None,
        weight_decay=config.adam_weight_decay,
        mask=decay_mask,
    )
    threshold = config.gradient_clipping_threshold
    # Both have an empty state, so that no checkpoint depends on clipping.
    clip = optax.clip_by_global_norm(threshold) if threshold else optax.identity()
    return optax.chain(clip, adamw)


def decay_mask(params: Any) -> Any:
    """True for the weights that decay: all but the scales of norms and biases."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path_name(path).rsplit("/", 1)[-1] not in ("scale", "bias"), params
    )


def optimizer_shardings(
    transform: optax.GradientTransformation,
    params: Any,
    layout: Layout,
) -> Any:
    """Shardings of the optimizer's state: moments lie as their weights, counters everywhere.

    Args:
        transform: The optimizer.
        params: Abstract weights with shardings.
        layout: Where the counters are replicated.
    """
    replicated = layout.sharding((), ())
    state = jax.eval_shape(transform.init, params)
    return optax.tree.map_params(
        transform,
        lambda _, weight: weight.sharding,
        state,
        params,
        transform_non_params=lambda _: replicated,
    )

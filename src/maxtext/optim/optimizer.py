"""Gradients to new weights, and where the optimizer's state lies."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from maxtext.config.schema_training import OptimizerConfig
from maxtext.optim.adafactor import adafactor
from maxtext.optim.momentum import momentum, muon
from maxtext.optim.spikes import SpikeFilter
from maxtext.optim.trainable import trainable_mask
from maxtext.parallel.layout import Layout
from maxtext.parallel.params import (
    Param,
    map_params,
    merge,
    named_leaves,
    path_name,
    pytree,
    select,
)
from maxtext.types import Array, Bool, Float

# The name of what the spike filter keeps, beside those of the rules.
SPIKES = "spikes"


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """How some of the weights are updated.

    Attributes:
        weights: True for those.
        transform: Gradients to what is subtracted, before it is taken times the learning rate.
        weight_decay: Part of the weight that is added to that; norms and biases are left out.
    """

    weights: Any
    transform: optax.GradientTransformation
    weight_decay: float


@pytree
class Updated:
    """What an update gave.

    Attributes:
        params: The new weights.
        opt_state: The optimizer's new state.
        grad_norm: Global L2 norm of the gradient before clipping.
        skipped: Whether weights and state are the old ones; None where no step is ever skipped.
    """

    params: Any
    opt_state: Any
    grad_norm: Float[Array, ""]
    skipped: Bool[Array, ""] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Optimizer:
    """Takes steps; has no state of its own.

    Attributes:
        trainable: True for the weights that are trained; there are no gradients of the others.
        rules: One for each kind of weight; a name is that of its state.
        clipping_threshold: Largest global norm of the gradient; 0: any.
        spikes: Finds steps that are not taken.
    """

    trainable: Any
    rules: Mapping[str, Rule]
    clipping_threshold: float = 0.0
    spikes: SpikeFilter | None = None

    def init(self, params: Any) -> dict[str, Any]:
        """The state before the first step, under the names of the rules."""
        state: dict[str, Any] = {
            name: rule.transform.init(select(params, rule.weights))
            for name, rule in self.rules.items()
        }
        return state if self.spikes is None else state | {SPIKES: self.spikes.init()}

    def update(
        self, grads: Any, opt_state: Any, params: Any, *, rate: jax.Array, loss: jax.Array
    ) -> Updated:
        """One step.

        Args:
            grads: In float32, None for weights that are not trained.
            opt_state: The state.
            params: All weights.
            rate: The learning rate.
            loss: What a spike is judged by, beside the gradient.
        """
        norm = global_norm(grads)
        if self.clipping_threshold:
            shrink = jnp.minimum(1.0, self.clipping_threshold / norm)
            grads = jax.tree.map(lambda grad: grad * shrink, grads)
        new_params, new_state = params, {}
        for name, rule in self.rules.items():
            chosen, own = select(params, rule.weights), select(grads, rule.weights)
            steps, state = rule.transform.update(own, opt_state[name], chosen)
            # What is reckoned in float32 is kept in the type that the state began with.
            new_state[name] = jax.tree.map(
                lambda new, old: new.astype(old.dtype), state, opt_state[name]
            )
            new_params = merge(_moved(chosen, steps, rate, rule.weight_decay), new_params)
        skipped = None
        if self.spikes is not None:
            history, skipped = self.spikes.judge(opt_state[SPIKES], loss, norm)
            new_params, new_state = _unless(
                skipped, (new_params, new_state), (params, {n: opt_state[n] for n in new_state})
            )
            new_state[SPIKES] = history
        return Updated(params=new_params, opt_state=new_state, grad_norm=norm, skipped=skipped)


def optimizer(config: OptimizerConfig, specs: Any) -> Optimizer:
    """The optimizer that `opt_type` names.

    Args:
        config: Its keys.
        specs: The weights, declared.

    Raises:
        ValueError: `trainable_parameters_mask` has a pattern that is found in no name.
    """
    trainable = trainable_mask(config.trainable_parameters_mask, specs)
    spikes = None
    if config.skip_step_on_spikes:
        spikes = SpikeFilter(config.skip_step_interval, config.skip_step_scaling_factor)
    return Optimizer(
        trainable=trainable,
        rules=_rules(config, specs, trainable),
        clipping_threshold=config.gradient_clipping_threshold,
        spikes=spikes,
    )


def _rules(config: OptimizerConfig, specs: Any, trainable: Any) -> dict[str, Rule]:
    dtype = config.mu_dtype or None
    match config.opt_type:
        case "adamw":
            return {"adamw": Rule(trainable, _adam(config), config.adam_weight_decay)}
        case "adafactor":
            chain = adafactor(select(specs, trainable))
            return {"adafactor": Rule(trainable, chain, config.adafactor_weight_decay)}
        case "lion":
            chain = optax.scale_by_lion(config.lion_b1, config.lion_b2, mu_dtype=dtype)
            return {"lion": Rule(trainable, chain, config.lion_weight_decay)}
        case "sgd":
            chain = momentum(config.sgd_momentum, dtype=dtype)
            chain = chain if config.sgd_momentum else optax.identity()
            return {"sgd": Rule(trainable, chain, config.sgd_weight_decay)}
        case "muon":
            hidden = map_params(lambda _, spec: is_hidden_matrix(spec), specs)
            matrices = jax.tree.map(lambda one, trained: one and trained, hidden, trainable)
            rest = jax.tree.map(lambda one, trained: not one and trained, hidden, trainable)
            chain = muon(
                select(specs, matrices),
                beta=config.muon_beta,
                consistent_rms=config.muon_consistent_rms,
                dtype=dtype,
            )
            return {
                "muon": Rule(matrices, chain, config.muon_weight_decay),
                "adamw": Rule(rest, _adam(config), config.adam_weight_decay),
            }


def _adam(config: OptimizerConfig) -> optax.GradientTransformation:
    """Adam's step; with decoupled decay it is AdamW.

    Source: Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2.
    """
    return optax.scale_by_adam(
        config.adam_b1,
        config.adam_b2,
        config.adam_eps,
        config.adam_eps_root,
        mu_dtype=config.mu_dtype or None,
    )


def is_hidden_matrix(spec: Param) -> bool:
    """Whether a weight maps activations to activations: no embedding, head, norm or bias."""
    return spec.num_in > 0 and "vocab" not in spec.axes


def decay_mask(params: Any) -> Any:
    """True for the weights that decay: all but the scales of norms and biases."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path_name(path).rsplit("/", 1)[-1] not in ("scale", "bias"), params
    )


def global_norm(tree: Any) -> jax.Array:
    """The L2 norm of all numbers in a tree, in float32 whatever their type."""
    squares = (jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree))
    return jnp.sqrt(sum(squares, start=jnp.zeros((), jnp.float32)))


def optimizer_shardings(opt_state: Any, params: Any, layout: Layout, *, over_data: bool) -> Any:
    """Where the optimizer's state lies: what belongs to a weight as that, the rest everywhere.

    Args:
        opt_state: Abstract.
        params: Abstract weights with shardings.
        layout: Of both.
        over_data: Split it over the data axis too, where a dim divides.
    """
    weights = named_leaves(params)

    def one(path: tuple[Any, ...], leaf: Any) -> Any:
        parts = path_name(path).split("/")
        names = ("/".join(parts[start:]) for start in range(len(parts)))
        name = next((name for name in names if name in weights), None)
        if name is None:
            return layout.sharding((), ())
        return layout.like(weights[name].sharding, leaf.shape, over_data=over_data)

    return jax.tree_util.tree_map_with_path(one, opt_state)


def _moved(params: Any, steps: Any, rate: jax.Array, weight_decay: float) -> Any:
    def one(weight: jax.Array, step: jax.Array, decays: bool) -> jax.Array:
        wide = weight.astype(jnp.float32)
        if decays and weight_decay:
            step = step + weight_decay * wide
        return (wide - rate * step).astype(weight.dtype)

    return jax.tree.map(one, params, steps, decay_mask(params))


def _unless[T](skipped: jax.Array, new: T, old: T) -> T:
    return jax.tree.map(lambda one, other: jnp.where(skipped, other, one), new, old)

"""Runs layers of equal weights, which are always stacked: in a loop or unrolled."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from maxtext.config.schema import ComputeConfig
from maxtext.types import Array, Float

type LayerFn = Callable[[Any, Float[Array, "B L D"], Any], Float[Array, "B L D"]]
type RematPolicy = Callable[..., bool]

PROJECTIONS = ("query_proj", "key_proj", "value_proj", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo")
SAVED = {
    "minimal": PROJECTIONS,
    "save_qkv_proj": ("query_proj", "key_proj", "value_proj"),
    "save_out_proj": ("out_proj",),
}
OFFLOADED = {
    "minimal_offloaded": PROJECTIONS,
    "qkv_proj_offloaded": ("query_proj", "key_proj", "value_proj"),
}


@dataclasses.dataclass(frozen=True)
class Stages:
    """How stacks run.

    Attributes:
        scan: One compiled layer in a loop; False compiles each.
        remat: Whether the backward pass computes a layer anew.
        saved: Names of the tensors that are kept all the same.
        offloaded: Names of those that are kept in the memory of the host.
    """

    scan: bool = True
    remat: bool = False
    saved: tuple[str, ...] = ()
    offloaded: tuple[str, ...] = ()


def stages_from_config(config: ComputeConfig) -> Stages:
    """What `scan_layers` and `remat_policy` ask for."""
    policy = config.remat_policy
    saved, offloaded = SAVED.get(policy, ()), OFFLOADED.get(policy, ())
    if policy == "custom":
        names = (*PROJECTIONS, "attention_out")
        saved, offloaded = (
            tuple(name for name in names if getattr(config, name) == where)
            for where in ("device", "offload")
        )
    return Stages(scan=config.scan_layers, remat=policy != "none", saved=saved, offloaded=offloaded)


def run_layers(
    stages: Stages,
    cycle: Sequence[LayerFn],
    stacked: Any,
    x: Float[Array, "B L D"],
    per_layer: Any,
) -> Float[Array, "B L D"]:
    """Applies the layers in order.

    Args:
        stages: How they run; the result is the same for all.
        cycle: `layer(params, x, extra)` of the first layers, which repeat from then on. A loop
            takes whole cycles; the layers that are left are run after it.
        stacked: Weights, with a leading dim of layers.
        x: Input of the first layer.
        per_layer: A tree of arrays with a leading dim of layers; each layer gets its slice as
            `extra`.
    """
    size = jax.tree.leaves(stacked)[0].shape[0]
    looped = size - size % len(cycle) if stages.scan else 0
    in_loop, after = split_stack((stacked, per_layer), looped)
    if looped:
        # The two passes are two loops, between which no compiler looks for common parts.
        layers = [_checkpointed(stages, layer, prevent_cse=False) for layer in cycle]
        x = _loop(layers, in_loop, x)
    if looped < size:
        layers = [_checkpointed(stages, layer, prevent_cse=True) for layer in cycle]
        x = _in_order(layers, after, x)
    return x


def _checkpointed(stages: Stages, layer: LayerFn, *, prevent_cse: bool) -> LayerFn:
    """The layer, with what its backward pass may keep."""
    if not stages.remat:
        return layer
    return jax.checkpoint(layer, policy=remat_policy(stages), prevent_cse=prevent_cse)


def remat_policy(stages: Stages) -> RematPolicy:
    """What the backward pass need not compute anew, for `jax.checkpoint`."""
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=list(stages.saved),
        names_which_can_be_offloaded=list(stages.offloaded),
        offload_src="device",
        offload_dst="pinned_host",
    )


def _loop(layers: Sequence[LayerFn], slices: Any, x: jax.Array) -> jax.Array:
    """The layers, again and again until there are no more slices."""
    if len(layers) == 1:
        # As below, but for a dim of size one, which would cost a copy.
        (layer,) = layers
        return jax.lax.scan(lambda x, one: (layer(one[0], x, one[1]), None), x, slices)[0]
    cycles = jax.tree.map(lambda leaf: leaf.reshape(-1, len(layers), *leaf.shape[1:]), slices)
    return jax.lax.scan(lambda x, one: (_in_order(layers, one, x), None), x, cycles)[0]


def _in_order(layers: Sequence[LayerFn], slices: Any, x: jax.Array) -> jax.Array:
    """The layers, one after another, from the first again after the last."""
    for layer, (params, extra) in zip(itertools.cycle(layers), unstack(slices), strict=False):
        x = layer(params, x, extra)
    return x


def split_stack(stacked: Any, place: int) -> tuple[Any, Any]:
    """The slices of the leading dim before `place`, and the rest."""
    leaves, treedef = jax.tree.flatten(stacked)
    parts = [jax.lax.split(leaf, (place, leaf.shape[0] - place)) for leaf in leaves]
    before, after = zip(*parts, strict=True)
    return treedef.unflatten(before), treedef.unflatten(after)


def unstack(stacked: Any) -> list[Any]:
    """One tree for each slice of the leading dim.

    By `split`, whose derivative joins the slices in one pass; that of indexing would add a full
    stack for each.
    """
    leaves, treedef = jax.tree.flatten(stacked)
    size = leaves[0].shape[0]
    slices = [[part[0] for part in jax.lax.split(leaf, (1,) * size)] for leaf in leaves]
    return [treedef.unflatten(one) for one in zip(*slices, strict=True)]

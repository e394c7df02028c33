"""Runs a stack of equal layers, whose weights are always stacked: in a loop or unrolled."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from maxtext.config.schema import ComputeConfig
from maxtext.types import Array, Float

type LayerFn = Callable[[Any, Float[Array, "B L D"], Any], Float[Array, "B L D"]]
type RematPolicy = Callable[..., bool]

PROJECTIONS = ("query_proj", "key_proj", "value_proj", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo")
SAVED = {
    "full": (),
    "minimal": PROJECTIONS,
    "save_qkv_proj": ("query_proj", "key_proj", "value_proj"),
    "save_out_proj": ("out_proj",),
}


@dataclasses.dataclass(frozen=True)
class Stages:
    """How stacks run.

    Attributes:
        scan: One compiled layer in a loop; False compiles each.
        remat: Whether the backward pass computes a layer anew.
        saved: Names of the tensors that are kept all the same.
    """

    scan: bool = True
    remat: bool = False
    saved: tuple[str, ...] = ()


def stages_from_config(config: ComputeConfig) -> Stages:
    """What `scan_layers` and `remat_policy` ask for."""
    if config.remat_policy == "custom":
        names = (*PROJECTIONS, "attention_out")
        saved = tuple(name for name in names if getattr(config, name) == "device")
    else:
        saved = SAVED.get(config.remat_policy, ())
    return Stages(scan=config.scan_layers, remat=config.remat_policy != "none", saved=saved)


def run_layers(
    stages: Stages, layer: LayerFn, stacked: Any, x: Float[Array, "B L D"], per_layer: Any
) -> Float[Array, "B L D"]:
    """Applies the layers in order.

    Args:
        stages: How they run; the result is the same for all.
        layer: `layer(params, x, extra)` of one layer.
        stacked: Weights, with a leading dim of layers.
        x: Input of the first layer.
        per_layer: A tree of arrays with a leading dim of layers; each layer gets its slice as
            `extra`.
    """
    if stages.remat:
        policy = jax.checkpoint_policies.save_only_these_names(*stages.saved)
        layer = jax.checkpoint(layer, policy=policy, prevent_cse=not stages.scan)
    if stages.scan:
        body = lambda carry, slices: (layer(slices[0], carry, slices[1]), None)  # noqa: E731
        return jax.lax.scan(body, x, (stacked, per_layer))[0]
    for params, extra in unstack((stacked, per_layer)):
        x = layer(params, x, extra)
    return x


def unstack(stacked: Any) -> list[Any]:
    """One tree for each slice of the leading dim.

    By `split`, whose derivative joins the slices in one pass; that of indexing would add a full
    stack for each.
    """
    leaves, treedef = jax.tree.flatten(stacked)
    size = leaves[0].shape[0]
    slices = [[part[0] for part in jax.lax.split(leaf, (1,) * size)] for leaf in leaves]
    return [treedef.unflatten(one) for one in zip(*slices, strict=True)]

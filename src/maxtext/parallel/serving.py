"""The rules of serving: tokens lie flat on the length dim, and pages follow the tokens."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from maxtext.config.attention_dp import AttentionDP, attention_dp
from maxtext.config.schema import MeshConfig, ModelConfig
from maxtext.parallel.layout import Layout, MeshAxes, with_ways
from maxtext.parallel.mesh import make_layout, make_mesh, mesh_degrees

# The mesh of attention data parallelism. `model` splits the heads of a group of devices, `attn_dp`
# is the groups, and everything but attention is split over both.
DATA, ATTN_DP, EXPERT, MODEL = "data", "attn_dp", "expert", "model"
_SPLIT = (MODEL, ATTN_DP)
_REQUESTS = (DATA, ATTN_DP)


def serving_layout(config: MeshConfig, model: ModelConfig, devices: Sequence[Any]) -> Layout:
    """The mesh and the rules that serve a model on these devices.

    Raises:
        ValueError: The degrees do not multiply to the devices.
    """
    dp = attention_dp(config, model)
    if dp.attn_dp == 1:
        return tensor_layout(make_layout(config, devices), kv_heads=model.num_kv_heads)
    across, within = mesh_degrees(config, devices)
    # What is left over to fsdp takes copies: the weights are split by tensor already.
    copies = within["data"] * within.get("fsdp", 1)
    sizes = {DATA: copies, ATTN_DP: dp.attn_dp, EXPERT: within.get("expert", 1), MODEL: dp.model}
    slices = {DATA: math.prod(across.values()), ATTN_DP: 1, EXPERT: 1, MODEL: 1}
    mesh = make_mesh(config, devices, across=slices, within=sizes)
    return Layout(mesh, attention_dp_rules(dp))


def tensor_layout(layout: Layout, *, kv_heads: int) -> Layout:
    """The mesh of training, with what splits rows there splitting tokens and pages instead.

    Key and value heads that are fewer than the devices that split heads are held by each device,
    which caches those that its query heads look at.
    """
    rules = dict(layout.rules)
    split = rules["activation_batch"]
    rules["activation_batch"] = rules["attn_activation_batch"] = ()
    for name in ("activation_length", "activation_norm_length", "attn_activation_length", "pages"):
        rules[name] = split
    rules["cache_heads"] = rules["activation_heads"]
    if kv_heads % layout.ways("activation_kv_heads"):
        rules["kv_heads"] = rules["activation_kv_heads"] = ()
    return dataclasses.replace(layout, rules=with_ways(rules), balanced_rows=False)


def attention_dp_rules(dp: AttentionDP) -> dict[str, MeshAxes]:
    """The table of a variant.

    Sharded, the projections of attention run on the tokens of all groups, each device with few
    heads; then each group takes its own tokens with many. Heads are split by `model` first, so
    that a device finds its heads among those of its place in each group.
    """
    rules: dict[str, MeshAxes] = {
        # weights
        "layers": (),
        "embed": (),
        "mlp": _SPLIT,
        "heads": _SPLIT if dp.sharded else (MODEL,),
        "kv_heads": _SPLIT if dp.variant == "Q+K+V" else (MODEL,),
        "kv": (),
        "vocab": _SPLIT,
        "norm": _SPLIT,
        # activations
        "activation_batch": (),
        "activation_length": (DATA,),
        "activation_norm_length": (DATA,),
        "activation_embed": _SPLIT,
        "activation_mlp": _SPLIT,
        "activation_vocab": _SPLIT,
        "attn_activation_batch": (),
        "attn_activation_length": _REQUESTS,
        "attn_activation_embed": (MODEL,),
        "activation_heads": (MODEL,),
        "activation_kv_heads": (MODEL,),
        "activation_kv": (),
        # cache
        "pages": _REQUESTS,
        "cache_heads": (MODEL,),
    }
    rules = with_ways(rules)
    # A table that is split by its rows gives whole ones.
    rules["looked_up_embed"] = ()
    if not dp.sharded:
        # Each group sums over its own heads before it passes its tokens on.
        rules["attn_out_length"], rules["attn_out_embed"] = _REQUESTS, (MODEL,)
    if dp.sharded:
        rules["attn_projection_length"] = (DATA,)
        # Whole: split, the compiler would pass parts of the tokens round to sum over them.
        rules["attn_activation_embed"] = ()
        rules["attn_projection_heads"] = rules["heads"]
    if dp.variant == "Q+K+V":
        rules["attn_projection_kv_length"] = (DATA,)
        rules["attn_projection_kv_heads"] = rules["kv_heads"]
    return rules

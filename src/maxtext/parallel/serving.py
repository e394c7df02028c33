"""The rules of serving: tokens lie flat on the length dim, and pages follow the tokens."""

import dataclasses

from maxtext.parallel.layout import Layout


def serving_layout(layout: Layout, *, kv_heads: int) -> Layout:
    """The same mesh, with what splits rows in training splitting tokens and pages instead.

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
    return dataclasses.replace(layout, rules=rules, balanced_rows=False)

"""What each device holds while the engine runs: heads, requests, a slice of the MLP."""

import dataclasses

from maxtext.config.schema import ModelConfig
from maxtext.layers.paged import cached_heads
from maxtext.parallel.layout import Layout

type Span = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Holding:
    """What one device holds; spans are the first and the one after the last.

    Attributes:
        device: Its number.
        group: Which requests it holds: those of this group of devices.
        projected: Query heads whose projections it stores.
        attending: Query heads that attend there.
        cached: Key and value heads in its cache, the first and the one after the last.
        mlp: Hidden units of the feed-forward layers.
    """

    device: int
    group: int
    projected: Span
    attending: Span
    cached: Span
    mlp: Span


def holdings(model: ModelConfig, layout: Layout) -> tuple[Holding, ...]:
    """Those of all devices, in the order of the mesh."""
    heads = cached_heads(layout, model.num_kv_heads)
    copies = heads // model.num_kv_heads
    groups = _spans(layout, "pages", layout.ways("pages"))
    projected = _spans(layout, "heads", model.num_query_heads)
    attending = _spans(layout, "activation_heads", model.num_query_heads)
    cached = _spans(layout, "cache_heads", heads)
    mlp = _spans(layout, "activation_mlp", model.mlp_dim)
    return tuple(
        Holding(
            device=device.id,
            group=groups[place][0],
            projected=projected[place],
            attending=attending[place],
            cached=(cached[place][0] // copies, (cached[place][1] - 1) // copies + 1),
            mlp=mlp[place],
        )
        for place, device in enumerate(layout.mesh.devices.flat)
    )


def _spans(layout: Layout, axis: str, size: int) -> list[Span]:
    """The part of a dim of this logical axis that each device has."""
    parts = layout.sharding((axis,), (size,)).devices_indices_map((size,))
    return [parts[device][0].indices(size)[:2] for device in layout.mesh.devices.flat]

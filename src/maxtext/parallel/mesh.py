"""Devices to a mesh."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from maxtext.config.schema import DEGREES, MeshConfig
from maxtext.parallel.layout import Layout, with_ways


def make_layout(config: MeshConfig, devices: Sequence[Any]) -> Layout:
    """The mesh and the rules that `config` asks for on these devices.

    Raises:
        ValueError: The degrees do not multiply to the devices.
    """
    across, within = mesh_degrees(config, devices)
    mesh = make_mesh(config, devices, across=across, within=within)
    rules = with_ways(dict(config.logical_axis_rules))
    return Layout(mesh, rules, balanced_rows=config.context_parallel_load_balance)


def mesh_degrees(
    config: MeshConfig, devices: Sequence[Any]
) -> tuple[dict[str, int], dict[str, int]]:
    """The degree of each mesh axis across slices and within one; raises as `make_layout`."""
    num_slices = count_slices(config, devices)
    across = _degrees(config, "dcn", num_slices, "slices")
    return across, _degrees(config, "ici", len(devices) // num_slices, "devices of a slice")


def make_mesh(
    config: MeshConfig,
    devices: Sequence[Any],
    *,
    across: Mapping[str, int],
    within: Mapping[str, int],
) -> Mesh:
    """The devices as a mesh of these axes, each of the product of its two degrees."""
    array = _arrange(config, devices, across=tuple(across.values()), within=tuple(within.values()))
    return Mesh(array, tuple(within), axis_types=(AxisType.Auto,) * array.ndim)


def count_slices(config: MeshConfig, devices: Sequence[Any]) -> int:
    """How many slices the devices form: by the devices, by `num_slices`, or by the dcn degrees.

    Raises:
        ValueError: These disagree, or the devices do not divide over them.
    """
    real = len({getattr(device, "slice_index", None) or 0 for device in devices})
    asked = math.prod(
        max(1, getattr(config, f"dcn_{DEGREES[name]}_parallelism")) for name in config.mesh_axes
    )
    slices = config.num_slices if config.num_slices > 0 else max(real, asked)
    if real > 1 and slices != real:
        raise ValueError(f"num_slices or the dcn degrees ask for {slices} slices; there are {real}")
    if len(devices) % slices:
        raise ValueError(f"{len(devices)} devices do not divide over {slices} slices")
    return slices


def _degrees(config: MeshConfig, family: str, total: int, what: str) -> dict[str, int]:
    """The degree of each mesh axis in one family, its -1 filled in."""
    keys = {name: f"{family}_{DEGREES[name]}_parallelism" for name in config.mesh_axes}
    given = {name: getattr(config, key) for name, key in keys.items()}
    fixed = math.prod(degree for degree in given.values() if degree != -1)
    free = [name for name, degree in given.items() if degree == -1]
    listed = " x ".join(f"{keys[name]}={degree}" for name, degree in given.items() if degree != 1)
    if len(free) > 1:
        raise ValueError(f"only one of {', '.join(keys[name] for name in free)} can be -1")
    if total % fixed or (not free and fixed != total):
        raise ValueError(
            f"{listed or f'{family} degrees of 1'}: {fixed} does not fit {total} {what}; the "
            f"degrees must multiply to {total}, or one of them be -1 and the rest divide it"
        )
    return {name: total // fixed if degree == -1 else degree for name, degree in given.items()}


def _arrange(
    config: MeshConfig,
    devices: Sequence[Any],
    *,
    across: tuple[int, ...],
    within: tuple[int, ...],
) -> np.ndarray:
    """The devices as an array of one dim an axis, close ones next to each other."""
    num_slices = math.prod(across)
    if devices[0].platform != "tpu":
        # Consecutive devices are the close ones: those of a host, or of an emulated slice.
        blocks = np.asarray(devices, dtype=object).reshape(*across, *within)
        rank = len(within)
        pairs = [dim for axis in range(rank) for dim in (axis, axis + rank)]
        return blocks.transpose(pairs).reshape([a * w for a, w in zip(across, within, strict=True)])
    split = config.allow_split_physical_axes
    if num_slices == 1:
        return mesh_utils.create_device_mesh(within, devices, allow_split_physical_axes=split)
    return mesh_utils.create_hybrid_device_mesh(
        within, across, devices, allow_split_physical_axes=split
    )


def describe(mesh: Mesh) -> str:
    """One line for the log: `8 cpu devices: fsdp 2 x tensor 4`."""
    device = mesh.devices.flat[0]
    axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items() if size > 1)
    kind = getattr(device, "device_kind", device.platform)
    return f"{mesh.size} {kind} device{'s' if mesh.size > 1 else ''}: {axes or 'no split'}"

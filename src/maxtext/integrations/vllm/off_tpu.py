"""The spots of tpu-inference that only TPUs can pass, replaced for other JAX backends.

Source: tpu-inference 0.32.0. One more is its attention kernel, of which `attend` takes the
place.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

# Part of the free memory that counts as the devices' own, of which vLLM gives a part to its cache.
_SHARE = 1 / 8


def adapt() -> None:
    """Replaces them; before tpu-inference's runner is imported, which takes them by name."""
    from tpu_inference import utils  # pyright: ignore[reportMissingImports]
    from tpu_inference.models.common import (  # pyright: ignore[reportMissingImports]
        compiler_options,
    )

    # Options of XLA that only its TPU compiler knows; others refuse to compile.
    compiler_options.get_step_fn_compiler_options = dict
    compiler_options.get_sampling_compiler_options = dict
    # Raises where the device is no TPU. Tables of kernel sizes are looked up by it.
    utils.get_device_name = _device_name
    # Asks devices for statistics that CPUs do not keep: vLLM sizes its cache by them.
    utils.hbm_usage_bytes = _memory
    # The host fills the arrays of the next step while this one runs. A TPU has its own copy of
    # them by then; a CPU may read the host's.
    utils.device_array = _copying(utils.device_array)


def _copying(device_array: Callable[..., Any]) -> Callable[..., Any]:
    def copy(x: Any) -> Any:
        return x.copy() if isinstance(x, np.ndarray) else x

    @functools.wraps(device_array)
    def copied(mesh: Any, *arrays: Any, **rest: Any) -> Any:
        return device_array(mesh, *jax.tree.map(copy, arrays), **rest)

    return copied


def _device_name(num_devices: int | None = None) -> str:
    return "TPU v5e" if num_devices is None else f"TPU v5e-{num_devices}"


def _memory(devices: Sequence[Any]) -> list[tuple[int, int]]:
    """Bytes in use and bytes in all, of each device."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        found = [device.memory_stats() for device in devices]
        return [(one["bytes_in_use"], one["bytes_limit"]) for one in found]
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return [(0, int(free * _SHARE) // len(devices)) for _ in devices]

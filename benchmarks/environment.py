"""The environment of the processes that are measured."""

import os

# Settings of one machine's BLAS, which the product of the same process would not obey.
_MACHINES_OWN = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def cpu_environ(*, devices: int | None = None) -> dict[str, str]:
    """This process's environment, on a CPU: of so many virtual devices, or as many as it says."""
    kept = {name: value for name, value in os.environ.items() if name not in _MACHINES_OWN}
    if devices is not None:
        kept["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    return {**kept, "JAX_PLATFORMS": "cpu"}

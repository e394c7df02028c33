"""What the devices can do at best, and how much of their memory is in use."""

import dataclasses
from typing import Literal

import jax


@dataclasses.dataclass(frozen=True)
class DeviceLimits:
    """The vendor's figures for one JAX device, dense.

    Attributes:
        bfloat16_flops: FLOP/s of bfloat16 (and float16) products.
        float32_flops: FLOP/s of float32 products at JAX's default precision: one bfloat16 pass
            on TPU, TF32 on GPU. Higher precision stays below it.
    """

    bfloat16_flops: float
    float32_flops: float


def _tpu(teraflops: float) -> DeviceLimits:
    return DeviceLimits(teraflops * 1e12, teraflops * 1e12)


def _gpu(teraflops: float) -> DeviceLimits:
    # TF32 runs at half the rate of bfloat16 on each of these.
    return DeviceLimits(teraflops * 1e12, teraflops * 1e12 / 2)


# Sources: "System architecture" of each version in Google Cloud's TPU documentation; NVIDIA's
# data sheets of each GPU, the figures without sparsity. By `device_kind`.
_LIMITS = {
    "TPU v4": _tpu(275),
    "TPU v5 lite": _tpu(197),
    "TPU v5e": _tpu(197),
    "TPU v5": _tpu(459),
    "TPU v5p": _tpu(459),
    "TPU v6 lite": _tpu(918),
    "TPU v6e": _tpu(918),
    # A chip of 2307 TFLOP/s is two devices.
    "TPU7x": _tpu(2307 / 2),
    "NVIDIA A100-SXM4-40GB": _gpu(312),
    "NVIDIA A100-PCIE-40GB": _gpu(312),
    "NVIDIA A100-SXM4-80GB": _gpu(312),
    "NVIDIA A100 80GB PCIe": _gpu(312),
    "NVIDIA H100 80GB HBM3": _gpu(989.4),
    "NVIDIA H100 PCIe": _gpu(756),
    "NVIDIA H100 NVL": _gpu(835),
    "NVIDIA H200": _gpu(989.4),
    "NVIDIA H200 NVL": _gpu(835),
    "NVIDIA B200": _gpu(2250),
}


def device_limits(kind: str) -> DeviceLimits | None:
    """The limits of a `device_kind`; None for a CPU and for what is not in the table."""
    return _LIMITS.get(kind)


def peak_flops(kind: str, dtype: Literal["float32", "bfloat16", "float16"]) -> float | None:
    """FLOP/s of one device at best for products of `dtype`; None where unknown."""
    limits = device_limits(kind)
    if limits is None:
        return None
    return limits.float32_flops if dtype == "float32" else limits.bfloat16_flops


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """Memory of the fullest of this process's devices, in bytes.

    Attributes:
        in_use: Bytes allocated now.
        limit: Bytes that can be allocated.
    """

    in_use: int
    limit: int


def memory_use() -> MemoryUse | None:
    """Memory use as this process's devices report it; None where they do not (CPU)."""
    reports = [device.memory_stats() for device in jax.local_devices()]
    stats = [report for report in reports if report and "bytes_limit" in report]
    if not stats:
        return None
    fullest = max(stats, key=lambda report: report["bytes_in_use"])
    return MemoryUse(fullest["bytes_in_use"], fullest["bytes_limit"])

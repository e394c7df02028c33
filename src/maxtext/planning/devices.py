"""Devices that need not be there, and what their vendors say of them."""

import dataclasses
from collections.abc import Iterable
from typing import Literal

from maxtext.metrics.devices import device_limits

GIB = 2**30
_GIGABYTES = 1e9
_TPU = "Google Cloud, TPU documentation"
_NVIDIA = "NVIDIA data sheet"


@dataclasses.dataclass(frozen=True)
class Device:
    """One JAX device, in its vendor's figures.

    Attributes:
        name: How users call it.
        kind: Its `device_kind`, under which its FLOP/s are known.
        backend: Of JAX.
        hbm_bytes: Its memory. Vendors write GB and count in powers of two.
        hbm_bandwidth: Bytes a second from and to it.
        link_bandwidth: Bytes a second that it sends to others of its slice or machine, over all
            of its links; it receives as many at the same time.
        source: Where these are from.
    """

    name: str
    kind: str
    backend: Literal["tpu", "gpu"]
    hbm_bytes: int
    hbm_bandwidth: float
    link_bandwidth: float
    source: str

    @property
    def bfloat16_flops(self) -> float:
        """FLOP/s of bfloat16 products."""
        limits = device_limits(self.kind)
        assert limits is not None, self.kind
        return limits.bfloat16_flops


def _tpu(name: str, kind: str, numbers: tuple[float, float, float], page: str) -> Device:
    """A TPU; numbers: GiB, GB/s of memory, GB/s of all links in both directions."""
    memory, bandwidth, links = numbers
    return Device(
        name=name,
        kind=kind,
        backend="tpu",
        hbm_bytes=round(memory * GIB),
        hbm_bandwidth=bandwidth * _GIGABYTES,
        link_bandwidth=links / 2 * _GIGABYTES,
        source=f"{_TPU}: {page}, system architecture",
    )


def _gpu(name: str, kind: str, numbers: tuple[float, float, float], sheet: str) -> Device:
    """A GPU; numbers: GB, GB/s of memory, GB/s of NVLink in both directions."""
    memory, bandwidth, links = numbers
    return Device(
        name=name,
        kind=kind,
        backend="gpu",
        hbm_bytes=round(memory * GIB),
        hbm_bandwidth=bandwidth * _GIGABYTES,
        link_bandwidth=links / 2 * _GIGABYTES,
        source=f"{_NVIDIA}: {sheet}",
    )


_TABLE = (
    # The page has no links: the paper has 6 of 50 GB/s (Jouppi et al. 2023, arXiv:2304.01433).
    _tpu("v4", "TPU v4", (32, 1200, 600), "TPU v4"),
    _tpu("v5e", "TPU v5 lite", (16, 819, 400), "TPU v5e"),
    _tpu("v5p", "TPU v5", (95, 2765, 1200), "TPU v5p"),
    _tpu("v6e", "TPU v6 lite", (32, 1638, 800), "TPU v6e (Trillium)"),
    # A chip of 192 GiB, 7380 GB/s and 1200 GB/s is two devices.
    _tpu("tpu7x", "TPU7x", (96, 3690, 600), "TPU7x (Ironwood), half a chip"),
    _gpu("a100-40gb", "NVIDIA A100-SXM4-40GB", (40, 1555, 600), "A100 40GB SXM"),
    _gpu("a100-80gb", "NVIDIA A100-SXM4-80GB", (80, 2039, 600), "A100 80GB SXM"),
    _gpu("h100", "NVIDIA H100 80GB HBM3", (80, 3350, 900), "H100 SXM"),
    _gpu("h200", "NVIDIA H200", (141, 4800, 900), "H200 SXM"),
    # 1,440 GB, 64 TB/s and 14.4 TB/s of NVLink are those of eight.
    _gpu("b200", "NVIDIA B200", (180, 8000, 1800), "DGX B200, an eighth of it"),
)
DEVICES = {device.name: device for device in _TABLE}


@dataclasses.dataclass(frozen=True)
class Planned:
    """A device that a mesh can be made of and nothing can be computed on."""

    id: int
    platform: str = "planned"
    device_kind: str = "planned"
    process_index: int = 0


def planned_devices(count: int) -> list[Planned]:
    """As many devices, in one slice."""
    return [Planned(number) for number in range(count)]


def fitting(num_bytes: float, *, but: str) -> list[str]:
    """Devices of the table whose memory holds so much, the smallest first, `but` left out."""
    found: Iterable[Device] = (one for one in _TABLE if one.hbm_bytes >= num_bytes)
    return [one.name for one in sorted(found, key=lambda one: one.hbm_bytes) if one.name != but]

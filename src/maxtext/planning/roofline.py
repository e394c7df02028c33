"""How long a step takes at best on a device of the table."""

import dataclasses

from maxtext.planning.devices import Device
from maxtext.planning.exchanges import Exchanges


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Seconds of one step, if each part of the device did nothing but its own share of it.

    Attributes:
        memory: Reading what has to be read.
        products: Multiplying.
        links: Sending to other devices.
    """

    memory: float
    products: float
    links: float

    @property
    def step(self) -> float:
        """Of the step: reading goes on while the device multiplies, sending in between."""
        return max(self.memory, self.products) + self.links

    @property
    def bound(self) -> str:
        """What takes longest."""
        parts = {"memory": self.memory, "products": self.products, "links": self.links}
        return max(parts, key=lambda name: parts[name])


def seconds(
    device: Device | None, *, flops: float, hbm: float, exchanges: Exchanges | None
) -> Seconds | None:
    """Those of a step; None where the device or what it sends is not known.

    Args:
        device: Of the table.
        flops: Products on a device.
        hbm: Bytes that it reads.
        exchanges: What devices send each other.
    """
    if device is None or exchanges is None:
        return None
    return Seconds(
        memory=hbm / device.hbm_bandwidth,
        products=flops / device.bfloat16_flops,
        links=exchanges.bytes_sent / device.link_bandwidth,
    )

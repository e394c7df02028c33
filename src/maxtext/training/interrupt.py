"""SIGTERM and Ctrl-C as a wish that the loop grants between two steps."""

import signal
from types import FrameType, TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupt:
    """Remembers the first signal inside the block; a second one ends the process at once.

    Attributes:
        received: Number of the first signal to this process, 0 until there is one.
        agreed: Number of the signal that all processes stop for, 0 until they agreed on one. What
            they do together may depend on this one alone.
    """

    def __init__(self) -> None:
        self.received = 0
        self.agreed = 0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "Interrupt":
        for one in SIGNALS:
            self._previous[one] = signal.signal(one, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one, handler in self._previous.items():
            signal.signal(one, handler)  # pyright: ignore[reportArgumentType]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = number

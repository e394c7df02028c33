"""What the wall time of a run went to."""

import contextlib
import time
from collections.abc import Callable, Generator, Mapping

# In the order of the report; what no block claims is the last one.
PARTS = (
    "steps",
    "compilation",
    "startup",
    "input_wait",
    "checkpoint",
    "evaluation",
    "other",
)


class Goodput:
    """Wall time by what it went to: each moment counts once, for the innermost block under way.

    The clock runs from when it is made.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._under_way: list[str] = [PARTS[-1]]
        self._since = clock()

    @contextlib.contextmanager
    def during(self, part: str) -> Generator[None]:
        """Counts the block for `part`, one of `PARTS`, save what other blocks inside it take."""
        assert part in PARTS, part
        self._count()
        self._under_way.append(part)
        try:
            yield
        finally:
            self._count()
            self._under_way.pop()

    def seconds(self) -> dict[str, float]:
        """Seconds of each part up to now."""
        self._count()
        return dict(self._seconds)

    def _count(self) -> None:
        now = self._clock()
        self._seconds[self._under_way[-1]] += now - self._since
        self._since = now


def percentages(seconds: Mapping[str, float]) -> dict[str, float]:
    """The share of each part in percent with one decimal; they add up to 100.0 as shown.

    By the method of largest remainders.
    """
    total = sum(seconds.values())
    exact = {part: 1000 * value / total for part, value in seconds.items()}
    tenths = {part: int(value) for part, value in exact.items()}
    missing = 1000 - sum(tenths.values())
    for part in sorted(exact, key=lambda part: tenths[part] - exact[part])[:missing]:
        tenths[part] += 1
    return {part: value / 10 for part, value in tenths.items()}

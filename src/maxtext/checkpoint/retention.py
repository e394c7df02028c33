"""Which steps of a run are kept."""

import dataclasses
import math
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Retention:
    """What is kept: a step that any of the three rules wants.

    Attributes:
        newest: Newest steps; -1: all.
        period: Steps that are a multiple of it; -1: none.
        best: Steps of lowest evaluation loss.
    """

    newest: int
    period: int = -1
    best: int = 0

    def __post_init__(self) -> None:
        assert self.newest == -1 or self.newest > 0, f"newest={self.newest}"
        assert self.period == -1 or self.period > 0, f"period={self.period}"

    def doomed(self, losses: Mapping[int, float | None]) -> list[int]:
        """The steps to delete, oldest first, of all steps with their losses."""
        steps = sorted(losses)
        if self.newest == -1:
            return []
        kept = {*steps[-self.newest :], *best_steps(losses, self.best)}
        if self.period > 0:
            kept |= {step for step in steps if step % self.period == 0}
        return [step for step in steps if step not in kept]


def best_steps(losses: Mapping[int, float | None], number: int) -> list[int]:
    """The steps of lowest loss, the best first; of equal losses the oldest step goes first.

    A step without a finite loss is none of them.
    """
    known = {
        step: loss for step, loss in losses.items() if loss is not None and math.isfinite(loss)
    }
    return sorted(known, key=lambda step: (known[step], step))[:number]

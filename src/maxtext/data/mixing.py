"""Which of several sources each document is of, by exact weights."""

import heapq
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from maxtext.config.mixtures import shares


class Schedule:
    """Draws from sources, so that after n of them source i had n * share i, to less than 1.

    The draws repeat after as many as make all of the shares whole numbers.

    Source: Tijdeman 1980, The chairman assignment problem; drawn by earliest deadline, as Baruah
    et al. 1996, Proportionate progress.
    """

    def __init__(self, weights: Sequence[Fraction]) -> None:
        self._amounts = shares(weights)
        self._sources = _one_period(self._amounts)
        self._places = [np.flatnonzero(self._sources == one) for one in range(len(weights))]
        self._numbers = np.zeros(self._sources.size, np.int64)
        for places in self._places:
            self._numbers[places] = np.arange(places.size)

    def draw(self, index: int) -> tuple[int, int]:
        """The source of a draw, and how often it was drawn from before."""
        periods, place = divmod(index, self._sources.size)
        source = int(self._sources[place])
        return source, periods * self._amounts[source] + int(self._numbers[place])

    def counts(self, draws: int) -> list[int]:
        """How often each source is drawn from among the first draws."""
        periods, place = divmod(draws, self._sources.size)
        return [
            periods * amount + int(np.searchsorted(places, place))
            for amount, places in zip(self._amounts, self._places, strict=True)
        ]

    def index(self, source: int, number: int) -> int:
        """The draw that is number `number` of a source, the first is 0."""
        periods, place = divmod(number, self._amounts[source])
        return periods * self._sources.size + int(self._places[source][place])


def _one_period(amounts: Sequence[int]) -> np.ndarray:
    """The sources of all draws of a period.

    Draw j of source i must not come before place floor(j * period / amount), nor after
    ceil((j + 1) * period / amount) - 1: of those that may come, the most urgent does.
    """
    period = sum(amounts)
    drawn = [0] * len(amounts)
    waiting = [(0, source) for source in range(len(amounts))]
    urgent: list[tuple[int, int]] = []
    sources = np.zeros(period, np.int32)
    for place in range(period):
        while waiting and waiting[0][0] <= place:
            _, source = heapq.heappop(waiting)
            deadline = -(-(drawn[source] + 1) * period // amounts[source]) - 1
            heapq.heappush(urgent, (deadline, source))
        deadline, source = heapq.heappop(urgent)
        assert deadline >= place, (amounts, place)
        sources[place] = source
        drawn[source] += 1
        heapq.heappush(waiting, (drawn[source] * period // amounts[source], source))
    return sources

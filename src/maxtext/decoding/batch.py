"""A plan of the scheduler to the numbers that a step is handed."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from maxtext.decoding.requests import Sampling
from maxtext.decoding.scheduler import Limits, Row
from maxtext.decoding.step import StepShape

type Plan = Sequence[Sequence[Row]]

_SMALLEST_PROMPT = 16
_FACTOR = 4


class Shapes:
    """The few shapes that steps come in, for each of which the model is compiled."""

    def __init__(self, limits: Limits) -> None:
        self._ranks, self._table = limits.num_ranks, -(-limits.max_length // limits.page_size)
        most = limits.max_num_batched_tokens
        self._singles = _sizes(1, limits.max_num_seqs)
        self._prompts = _sizes(min(_SMALLEST_PROMPT, most), most)

    def all(self) -> list[StepShape]:
        """Every shape."""
        pairs = [(count, count) for count in self._singles]
        few = dict.fromkeys((self._singles[0], self._singles[-1]))
        pairs += itertools.product(self._prompts, few)
        return [self._make(tokens, count) for tokens, count in dict.fromkeys(pairs)]

    def of(self, plan: Plan) -> StepShape:
        """The smallest shape that holds the rows of each rank."""
        count = max(map(len, plan))
        tokens = max(sum(row.count for row in rows) for rows in plan)
        if all(row.count == 1 for rows in plan for row in rows):
            size = next(size for size in self._singles if size >= count)
            return self._make(size, size)
        tokens = next(size for size in self._prompts if size >= tokens)
        return self._make(tokens, 1 if count == 1 else self._singles[-1])

    def _make(self, tokens: int, sequences: int) -> StepShape:
        return StepShape(self._ranks, tokens, sequences, self._table)


def _sizes(first: int, most: int) -> list[int]:
    """`first`, that times `_FACTOR`, and so on below `most`, and `most`."""
    powers = (first * _FACTOR**power for power in itertools.count())
    return [*itertools.takewhile(lambda size: size < most, powers), most]


def numbers(plan: Plan, shape: StepShape, *, chooses: bool) -> np.ndarray:
    """The array [ranks, width] of a step; `chooses` puts settings of sampling into it."""
    rows = np.zeros((shape.ranks, shape.width), np.int32)
    views = shape.views(rows)
    for rank, of_rank in enumerate(plan):
        part = {name: view[rank] for name, view in views.items()}
        singles = sum(row.count == 1 for row in of_rank)
        part["counts"][:] = singles, singles, len(of_rank)
        start = 0
        for place, row in enumerate(of_rank):
            sequence, end = row.sequence, start + row.count
            part["tokens"][start:end] = sequence.tokens[row.start : row.end]
            part["page_table"][place, : len(sequence.pages)] = sequence.pages
            part["lengths"][place], part["starts"][place + 1] = row.end, end
            start = end
            if chooses:
                _fill(part, place, sequence.request.sampling)
                part["places"][place] = row.end
        part["starts"][len(of_rank) + 1 :] = start
    return rows


def _fill(part: Mapping[str, np.ndarray], place: int, sampling: Sampling) -> None:
    for name in ("top_k", "seed", "temperature", "top_p", "min_p", "repetition_penalty"):
        part[name][place] = getattr(sampling, name)

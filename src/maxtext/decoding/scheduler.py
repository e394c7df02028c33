"""Which tokens of which sequences the next step takes, and which pages hold them."""

import dataclasses
from collections import deque
from collections.abc import Iterator

from maxtext.decoding.pages import Pages, page_keys
from maxtext.decoding.requests import Request


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a rank can take at once.

    Attributes:
        num_ranks: Ranks, each with sequences and pages of its own.
        max_num_seqs: Sequences of a rank that run at once.
        max_num_batched_tokens: Tokens of a rank in one step.
        num_pages: Pages of a rank.
        page_size: Tokens of a page.
        max_length: Tokens of a sequence, prompt and new ones.
        prefix_caching: Keep and share pages of equal beginnings.
    """

    num_ranks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_pages: int
    page_size: int
    max_length: int
    prefix_caching: bool


@dataclasses.dataclass(eq=False)
class Sequence:
    """A request on its way.

    Attributes:
        id: Its number.
        request: What was asked for.
        tokens: The prompt and all new ones.
        cached: Tokens whose keys and values are in the cache.
        pages: Where they are.
        keys: Of its full pages, as many as were asked for.
    """

    id: int
    request: Request
    tokens: list[int]
    cached: int = 0
    pages: list[int] = dataclasses.field(default_factory=list)
    keys: list[bytes] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Row:
    """Tokens of a sequence that a step takes, from `start` to before `end`."""

    sequence: Sequence
    start: int
    end: int

    @property
    def count(self) -> int:
        """Number of tokens."""
        return self.end - self.start

    @property
    def samples(self) -> bool:
        """Whether the step gives the sequence a new token."""
        return self.end == len(self.sequence.tokens)


class Scheduler:
    """Sequences that wait and that run, first come, first served.

    Running sequences go first. When pages run out, the one that came last loses its own and waits
    again, before all others; what it had computed is computed anew.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.num_preempted = 0
        self.num_cached_tokens = 0
        self._waiting: deque[Sequence] = deque()
        self._running: list[list[Sequence]] = [[] for _ in range(limits.num_ranks)]
        self._pages = [
            Pages(limits.num_pages, shared=limits.prefix_caching) for _ in range(limits.num_ranks)
        ]

    @property
    def num_waiting(self) -> int:
        """Sequences that do not run yet."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences with pages."""
        return sum(map(len, self._running))

    @property
    def num_free_pages(self) -> int:
        """Pages that no sequence uses, of all ranks."""
        return sum(pages.num_free for pages in self._pages)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence; it must fit a rank that has nothing else."""
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence that is done or given up."""
        for rank, running in enumerate(self._running):
            if sequence in running:
                running.remove(sequence)
                self._pages[rank].release(sequence.pages)
                return
        self._waiting.remove(sequence)

    def plan(self) -> list[list[Row]]:
        """The rows of the next step for each rank, those of a single token first."""
        preempted = self.num_preempted
        budgets = [self.limits.max_num_batched_tokens] * self.limits.num_ranks
        rows: list[list[Row]] = []
        for rank in range(self.limits.num_ranks):
            rows.append(list(self._continue(rank, budgets)))
        while self._waiting and preempted == self.num_preempted:
            admitted = self._admit(budgets)
            if admitted is None:
                break
            rank, row = admitted
            rows[rank].append(row)
            budgets[rank] -= row.count
        return [sorted(of_rank, key=lambda row: row.count > 1) for of_rank in rows]

    def advance(self, plan: list[list[Row]]) -> None:
        """Takes note that a step was taken, before its new tokens are added."""
        size = self.limits.page_size
        for rank, rows in enumerate(plan):
            for row in rows:
                sequence = row.sequence
                known = sequence.cached // size
                sequence.cached = row.end
                if not self.limits.prefix_caching or sequence.cached // size == known:
                    continue
                sequence.keys = page_keys(sequence.tokens, size, sequence.keys)
                for page in range(known, sequence.cached // size):
                    self._pages[rank].name(sequence.pages[page], sequence.keys[page])

    def _continue(self, rank: int, budgets: list[int]) -> Iterator[Row]:
        """Rows of the sequences that run already."""
        running = self._running[rank]
        place = 0
        while place < len(running) and budgets[rank] > 0:
            sequence = running[place]
            count = min(len(sequence.tokens) - sequence.cached, budgets[rank])
            if not self._grow(rank, sequence, count):
                self._preempt(rank)
                continue
            budgets[rank] -= count
            place += 1
            yield Row(sequence, sequence.cached, sequence.cached + count)

    def _grow(self, rank: int, sequence: Sequence, count: int) -> bool:
        """Takes the pages that `count` more tokens need, all or none."""
        pages = self._pages[rank]
        need = -(-(sequence.cached + count) // self.limits.page_size) - len(sequence.pages)
        if need > pages.num_free:
            return False
        sequence.pages += pages.take(max(need, 0))
        return True

    def _preempt(self, rank: int) -> None:
        sequence = self._running[rank].pop()
        self._pages[rank].release(sequence.pages)
        sequence.pages, sequence.cached = [], 0
        self._waiting.appendleft(sequence)
        self.num_preempted += 1

    def _admit(self, budgets: list[int]) -> tuple[int, Row] | None:
        """Starts the sequence that has waited longest, on the rank that is least loaded with it."""
        sequence = self._waiting[0]
        limits = self.limits
        ranks = [
            rank
            for rank, running in enumerate(self._running)
            if len(running) < limits.max_num_seqs and budgets[rank] > 0
        ]
        if not ranks:
            return None
        if limits.prefix_caching:
            sequence.keys = page_keys(sequence.tokens, limits.page_size, sequence.keys)
        # One token at least has to be computed: its logits are what is asked for.
        keys = sequence.keys[: (len(sequence.tokens) - 1) // limits.page_size]
        found = {rank: self._pages[rank].match(keys) for rank in ranks}

        def load(rank: int) -> int:
            """Tokens that a rank's sequences hold, less those that it would share."""
            held = sum(len(one.tokens) for one in self._running[rank])
            return held - len(found[rank]) * limits.page_size

        for rank in sorted(ranks, key=load):
            matched, pages = found[rank], self._pages[rank]
            cached = len(matched) * limits.page_size
            count = min(len(sequence.tokens) - cached, budgets[rank])
            need = -(-(cached + count) // limits.page_size) - len(matched)
            if need > pages.num_free - pages.num_unused(matched):
                continue
            pages.share(matched)
            sequence.pages, sequence.cached = matched + pages.take(need), cached
            self._waiting.popleft()
            self.num_cached_tokens += cached
            self._running[rank].append(sequence)
            return rank, Row(sequence, cached, cached + count)
        return None

"""Batches that all processes take together, or none does."""

import dataclasses
import logging
from collections.abc import Callable

import jax
import numpy as np

from maxtext.config.errors import ConfigError, Problem
from maxtext.data.batch import State
from maxtext.data.prefetch import DevicePrefetcher, Loaded
from maxtext.metrics.goodput import Goodput
from maxtext.models.backend import config_errors
from maxtext.parallel.distributed import gather_later
from maxtext.training.interrupt import Interrupt

_logger = logging.getLogger(__name__)

_HALF = 1 << 31


@dataclasses.dataclass(frozen=True)
class _Fetched:
    """A batch of this process, or why there is none, and what all of them say, once called."""

    loaded: Loaded | None
    problem: ConfigError | None
    agreed: Callable[[], np.ndarray]


class Feed:
    """Hands out batches until the data of any process ends, or a signal came to any.

    Several processes ask each other about a batch before the step in front of it is dispatched:
    the answer is there when it is needed, and devices never wait for hosts. So a signal stops
    them a step later than it stops one process alone.

    Args:
        batches: Of this process.
        interrupt: Is told of a signal to any process.
        data_state: This process's place in the data before the first batch.
        before_wait: Called where the next batch is not there yet.
        goodput: Is told how long that takes.

    Attributes:
        tokens: Tokens that all processes have fed of each source up to the last batch; empty
            where there are not several.
    """

    def __init__(
        self,
        batches: DevicePrefetcher,
        interrupt: Interrupt,
        *,
        data_state: State,
        before_wait: Callable[[], None],
        goodput: Goodput,
    ) -> None:
        self._batches = batches
        self._interrupt = interrupt
        self._data_state = data_state
        self._before_wait = before_wait
        self._goodput = goodput
        self._ahead: _Fetched | None = None
        self.tokens: dict[str, int] = {}

    def next(self, *, done: int) -> Loaded | None:
        """The next batch; None at the end, after `done` steps, of which the log is told.

        Raises:
            ConfigError: The data of any process turned bad.
        """
        fetched = self._ahead or self._fetch()
        agreed = fetched.agreed()
        more, signals, failed = agreed[:, :3].T
        if fetched.problem is not None:
            raise fetched.problem
        if failed.any():
            where = f"the data cannot be read in process {failed.argmax()}, which says why"
            raise ConfigError([Problem("", where)])
        self._interrupt.agreed = int(signals.max())
        if self._interrupt.agreed:
            _logger.info("signal %d: stopping after %d steps", self._interrupt.agreed, done)
            return None
        if not more.all():
            _logger.info("the data ended after %d steps", done)
            return None
        self.tokens = _sum_of_shards(agreed[:, 3:], self._data_state)
        self._ahead = self._fetch() if jax.process_count() > 1 else None
        return fetched.loaded

    def _fetch(self) -> _Fetched:
        if not self._batches.ready():
            self._before_wait()
        loaded, problem = None, None
        try:
            with config_errors(), self._goodput.during("input_wait"):
                loaded = next(self._batches, None)
        except ConfigError as error:
            problem = error
        if loaded is not None:
            self._data_state = loaded.state
        says = int(loaded is not None), self._interrupt.received, int(problem is not None)
        return _Fetched(loaded, problem, gather_later(*says, *_shard_tokens(self._data_state)))


def _shard_tokens(state: State) -> list[int]:
    """The shard of the data, and the tokens of each source, each in two numbers of 31 bits."""
    halves = [divmod(count, _HALF) for count in state.get("tokens", {}).values()]
    return [state.get("process", 0), *(number for pair in halves for number in pair)]


def _sum_of_shards(rows: np.ndarray, state: State) -> dict[str, int]:
    """The tokens of each source over all shards; processes of one shard say the same."""
    shards = {int(row[0]): [int(one) for one in row[1:]] for row in rows}
    sums = [sum(column) for column in zip(*shards.values(), strict=True)]
    counts = [high * _HALF + low for high, low in zip(sums[::2], sums[1::2], strict=True)]
    return dict(zip(state.get("tokens", {}), counts, strict=True))

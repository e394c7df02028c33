"""Loss on held-out data, weighted by tokens."""

import time
from collections.abc import Callable

import jax

from maxtext.data.batch import Batch, BatchIterator, empty_batch
from maxtext.data.iterators import make_eval_iterator
from maxtext.metrics.step_log import EvalRecord
from maxtext.models.backend import config_errors
from maxtext.models.decoder import Model
from maxtext.parallel.distributed import gather
from maxtext.training.interrupt import Interrupt
from maxtext.training.loss import LossSums
from maxtext.training.progress import still
from maxtext.training.setup import Setup, data_shard, place

# Batches that are on their way to the devices at a time.
IN_FLIGHT = 2


class Evaluation:
    """Evaluates weights, each time on the same batches; made inside `use_layout`."""

    def __init__(self, setup: Setup) -> None:
        """Opens the data.

        Raises:
            ConfigError: The data cannot be read.
        """
        data = setup.config.data
        self._batches = setup.config.training.eval_steps
        self._shape = setup.eval_batch_shape
        self._sharding = setup.batch_sharding(self._shape)
        with config_errors():
            shard, self._rows = data_shard(self._sharding, self._shape)
            self._iterator: BatchIterator = make_eval_iterator(
                data, rows=self._rows, shard=shard, vocab_size=setup.config.model.vocab_size
            )
        self._sums: Callable[[Model, Batch], LossSums] = jax.jit(setup.loss_fn(dropout=False))

    def run(self, params: Model, *, step: int, interrupt: Interrupt) -> EvalRecord | None:
        """The cross entropy a token over `eval_steps` batches, or over all of the data.

        None after a signal to any process, which ends the evaluation of all of them.

        Raises:
            ValueError: The data holds no token to predict.
        """
        start = time.perf_counter()
        self._iterator.reset()
        sums: list[LossSums] = []
        with still("evaluating"):
            while len(sums) != self._batches:
                batch = self._next_batch(interrupt)
                if interrupt.agreed:
                    return None
                if batch is None:
                    break
                sums.append(self._sums(params, batch))
                jax.block_until_ready(sums[-IN_FLIGHT:][0])
        total = sum(float(one.cross_entropy) for one in sums)
        tokens = sum(int(one.tokens) for one in sums)
        if tokens == 0:
            raise ValueError("the evaluation data holds no token to predict")
        seconds = time.perf_counter() - start
        return EvalRecord(step=step, seconds=seconds, total_weights=tokens, loss=total / tokens)

    def close(self) -> None:
        """Ends the workers that read the data."""
        self._iterator.close()

    def _next_batch(self, interrupt: Interrupt) -> Batch | None:
        """The next batch; padding from this process while only others have data left.

        Tells `interrupt` of a signal to any process.
        """
        batch, bad_data = None, None
        try:
            batch = next(self._iterator, None)
        except ValueError as error:
            # Raised once all processes know: the others would wait for this one.
            bad_data = error
        agreed = gather(int(batch is not None), int(bad_data is not None), interrupt.received)
        more, failed, signals = agreed.T
        interrupt.agreed = int(signals.max())
        if bad_data is not None:
            raise bad_data
        if failed.any():
            raise ValueError("another process cannot read its evaluation data")
        if not more.any():
            return None
        if batch is None:
            batch = empty_batch(self._rows, self._shape[1])
        return place(batch, sharding=self._sharding, shape=self._shape)

"""Steps that are not taken because their loss or gradient is an outlier."""

import dataclasses

import jax
import jax.numpy as jnp

from maxtext.parallel.params import pytree
from maxtext.types import Array, Bool, Float, Int


@pytree
class SpikeHistory:
    """Losses and gradient norms of the last steps.

    Attributes:
        losses: Of the last `interval` steps, step n at n modulo `interval`.
        grad_norms: The same.
        count: Values ever put in.
    """

    losses: Float[Array, "interval"]
    grad_norms: Float[Array, "interval"]
    count: Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class SpikeFilter:
    """Finds spikes: more than `factor` standard deviations above the mean of recent steps.

    Source: OLMo-core 2.0, SkipStepOptimizer: a step that is skipped counts in the means of those
        after it, so that a new level is learnt.

    Attributes:
        interval: Steps of the mean; nothing is a spike before half of them are there.
        factor: Standard deviations above the mean that are still taken.
    """

    interval: int
    factor: float

    def init(self) -> SpikeHistory:
        """No steps yet."""
        zeros = jnp.zeros((self.interval,), jnp.float32)
        return SpikeHistory(losses=zeros, grad_norms=zeros, count=jnp.zeros((), jnp.int32))

    def judge(
        self, history: SpikeHistory, loss: jax.Array, grad_norm: jax.Array
    ) -> tuple[SpikeHistory, Bool[Array, ""]]:
        """The history with this step, and whether the step is a spike.

        NaN and infinity always are, and are not remembered.
        """
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        high = self._is_high(history.losses, history.count, loss)
        high |= self._is_high(history.grad_norms, history.count, grad_norm)
        place = history.count % self.interval
        after = SpikeHistory(
            losses=history.losses.at[place].set(loss),
            grad_norms=history.grad_norms.at[place].set(grad_norm),
            count=history.count + 1,
        )
        after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, history)
        return after, high | ~finite

    def _is_high(self, values: jax.Array, count: jax.Array, value: jax.Array) -> jax.Array:
        known = jnp.minimum(count, self.interval)
        there = jnp.arange(self.interval) < known
        mean = jnp.sum(values, where=there) / jnp.maximum(1, known)
        squares = jnp.sum(jnp.square(values - mean), where=there)
        deviation = jnp.sqrt(squares / jnp.maximum(1, known - 1))
        enough = known >= max(2, self.interval // 2)
        return enough & (value - mean > self.factor * deviation)

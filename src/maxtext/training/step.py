"""One training step, as a pure function."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from maxtext.data.batch import Batch
from maxtext.models.decoder import Model
from maxtext.models.fusion import NOTHING_FUSED, Fusion
from maxtext.optim.optimizer import Optimizer, global_norm
from maxtext.parallel.layout import constrain
from maxtext.parallel.params import merge, pytree, select
from maxtext.training.loss import LossFn, LossSums
from maxtext.training.state import TrainState
from maxtext.types import Array, Bool, DType, Float, Int


@pytree
class StepMetrics:
    """Scalars of one step.

    Attributes:
        loss: What was minimized, in nats a token: cross entropy and weighted z-loss.
        lm_loss: The cross entropy alone.
        z_loss: Mean squared logsumexp of the logits, not weighted.
        total_weights: Tokens that count, over the global batch.
        grad_norm: Global L2 norm of the gradient before clipping.
        param_norm: Global L2 norm of the weights before the update.
        learning_rate: Rate of this step's update.
        skipped: Whether there was no update since the step was a spike; None where none is ever
            skipped.
    """

    loss: Float[Array, ""]
    lm_loss: Float[Array, ""]
    z_loss: Float[Array, ""]
    total_weights: Int[Array, ""]
    grad_norm: Float[Array, ""]
    param_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    skipped: Bool[Array, ""] | None


@dataclasses.dataclass(frozen=True, eq=False)
class TrainStep:
    """Takes one optimizer step; jit it with the state donated.

    Attributes:
        loss_fn: Sums of the loss over (a part of) a batch.
        optimizer: Gradients to new weights.
        shardings: Where the state lies, before and after.
        update_shardings: Where gradients lie while the optimizer works: as the state that it
            keeps for each weight.
        fusion: Of the weights of the state; the optimizer sees them apart.
        accumulation: Parts that the batch is taken in, one after another.
        grad_dtype: Type of the gradients of a part; their sum is float32.
        z_loss_multiplier: Weight of the z-loss.
        seed: Of dropout.
    """

    loss_fn: LossFn
    optimizer: Optimizer
    shardings: TrainState
    update_shardings: Any
    fusion: Fusion = NOTHING_FUSED
    accumulation: int = 1
    grad_dtype: DType = jnp.float32
    z_loss_multiplier: float = 0.0
    seed: int = 0

    def __call__(
        self, state: TrainState, batch: Batch, rate: Float[Array, ""]
    ) -> tuple[TrainState, StepMetrics]:
        """The next state, and the step's metrics; `rate` is the learning rate."""
        tokens = jnp.maximum(1, jnp.sum(batch.counts))
        grads, sums = self._gradients(state, batch, tokens)
        lm_loss, z_loss = sums.cross_entropy / tokens, sums.z_loss / tokens
        loss = lm_loss + self.z_loss_multiplier * z_loss
        grads = select(self.fusion.apart(grads), self.optimizer.trainable)
        grads = jax.lax.with_sharding_constraint(grads, self.update_shardings)
        params = self.fusion.apart(state.params)
        updated = self.optimizer.update(grads, state.opt_state, params, rate=rate, loss=loss)
        metrics = StepMetrics(
            loss=loss,
            lm_loss=lm_loss,
            z_loss=z_loss,
            total_weights=sums.tokens,
            grad_norm=updated.grad_norm,
            param_norm=global_norm(params),
            learning_rate=rate,
            skipped=updated.skipped,
        )
        params = self.fusion.joined(updated.params)
        after = TrainState(step=state.step + 1, params=params, opt_state=updated.opt_state)
        return jax.lax.with_sharding_constraint(after, self.shardings), metrics

    def _gradients(
        self, state: TrainState, batch: Batch, tokens: jax.Array
    ) -> tuple[Any, LossSums]:
        """Gradients of the loss over the whole batch, whatever parts it is taken in, in float32.

        None for weights of which no part is trained.
        """
        trainable = self.fusion.joined(self.optimizer.trainable, any)
        trained = select(state.params, trainable)
        shardings = select(self.shardings.params, trainable)

        def part_loss(trained: Model, part: Batch, index: jax.Array) -> tuple[jax.Array, LossSums]:
            params = merge(trained, state.params)
            sums = self.loss_fn(params, part, self._dropout_key(state.step, index))
            total = sums.cross_entropy + self.z_loss_multiplier * sums.z_loss
            return total / tokens, sums

        def part_grads(part: Batch, index: jax.Array) -> tuple[Any, LossSums]:
            grads, sums = jax.grad(part_loss, has_aux=True)(trained, part, index)
            grads = jax.tree.map(lambda grad: grad.astype(self.grad_dtype), grads)
            grads = jax.lax.with_sharding_constraint(grads, shardings)
            return jax.tree.map(lambda grad: grad.astype(jnp.float32), grads), sums

        if self.accumulation == 1:
            return part_grads(batch, jnp.zeros((), jnp.int32))

        def add(carry: tuple[Any, LossSums], part: tuple[Batch, jax.Array]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, carry, part_grads(*part)), None

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), trained)
        zero = jnp.zeros((), jnp.float32)
        sums = LossSums(cross_entropy=zero, z_loss=zero, tokens=jnp.zeros((), jnp.int32))
        carry = (jax.lax.with_sharding_constraint(zeros, shardings), sums)
        parts = (split(batch, self.accumulation), jnp.arange(self.accumulation))
        return jax.lax.scan(add, carry, parts)[0]

    def _dropout_key(self, step: jax.Array, index: jax.Array) -> jax.Array | None:
        if self.loss_fn.dropout_rate == 0.0:
            return None
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), step), index)


def split(batch: Batch, parts: int) -> Batch:
    """The batch with a leading dim of `parts`; part i has rows i, i + parts, ...

    Taken so, every device keeps rows of its own in each part.
    """

    def one(x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)
        return constrain(x, None, "activation_batch", None)

    return jax.tree.map(one, batch)

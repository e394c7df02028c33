"""The loss of a batch, as sums: whoever divides does so once, over the global batch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from maxtext.config.schema import ComputeConfig
from maxtext.data.batch import Batch
from maxtext.layers.attentions import training_attend
from maxtext.layers.embeddings import project_to_vocab
from maxtext.models.decoder import Architecture, Model, Runtime, hidden_states, output_kernel
from maxtext.models.fusion import fusion_from_config
from maxtext.ops.cross_entropy import cross_entropy
from maxtext.parallel.layout import constrain, current_layout
from maxtext.parallel.params import pytree
from maxtext.parallel.pipeline import Pipeline
from maxtext.parallel.rows import row_split
from maxtext.parallel.stages import stages_from_config
from maxtext.types import Array, Float, Int, PRNGKeyArray


@pytree
class LossSums:
    """Sums over the targets that count.

    Attributes:
        cross_entropy: Of the negative log-likelihoods, in nats.
        z_loss: Of the squared logsumexps of the logits.
        tokens: Number of them.
    """

    cross_entropy: Float[Array, ""]
    z_loss: Float[Array, ""]
    tokens: Int[Array, ""]


@dataclasses.dataclass(frozen=True, eq=False)
class LossFn:
    """The loss of one model.

    Attributes:
        architecture: The model.
        compute: Resolved: nothing in it is `auto`.
        pipeline: How layers run in stages on different devices, if they do.
        dropout_rate: Part of the activations that dropout zeroes.
        max_segments: Documents in one row at most; None is not known.
    """

    architecture: Architecture
    compute: ComputeConfig
    pipeline: Pipeline | None = None
    dropout_rate: float = 0.0
    max_segments: int | None = None

    def __call__(
        self, params: Model, batch: Batch, dropout_key: PRNGKeyArray | None = None
    ) -> LossSums:
        """The sums over `batch`; without a key there is no dropout."""
        batch = jax.tree.map(lambda x: constrain(x, "activation_batch", None), batch)
        # Whole rows in their own order, whatever the layout makes of the rest.
        segments = batch.segments
        # Sums over tokens do not ask for their order, so it may be the one that balances work.
        split = row_split(current_layout())
        batch = jax.tree.map(
            lambda x: constrain(split.reordered(x), "activation_batch", "activation_length"), batch
        )
        runtime = Runtime(
            attend=functools.partial(training_attend, self.compute, max_segments=self.max_segments),
            stages=stages_from_config(self.compute),
            pipeline=self.pipeline,
            fusion=fusion_from_config(self.compute),
            dtype=self.compute.dtype,
            one_hot_embed=self.compute.use_iota_embed,
            dropout_rate=self.dropout_rate,
            dropout_key=dropout_key,
        )
        hidden = hidden_states(
            self.architecture, params, batch.inputs, batch.positions, segments, runtime=runtime
        )
        nll, normalizer = cross_entropy(
            hidden,
            output_kernel(params),
            batch.targets,
            project=functools.partial(
                project_to_vocab,
                float32=self.compute.logits_dot_in_fp32,
                soft_cap=self.architecture.config.final_logits_soft_cap,
            ),
            num_tiles=self.compute.num_vocab_tiling,
        )
        counts = batch.counts
        return LossSums(
            cross_entropy=jnp.sum(jnp.where(counts, nll, 0.0)),
            z_loss=jnp.sum(jnp.where(counts, jnp.square(normalizer), 0.0)),
            tokens=jnp.sum(counts),
        )

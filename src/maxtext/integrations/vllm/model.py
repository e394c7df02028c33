"""Our decoder as tpu-inference calls a model."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from maxtext.config.errors import ConfigError, Problem
from maxtext.config.load import load
from maxtext.config.schema import Config
from maxtext.conversion.hub import local_folder
from maxtext.decoding.load import engine_params, load_params
from maxtext.integrations.vllm.attend import attention_op
from maxtext.integrations.vllm.layout import engine_layout
from maxtext.integrations.vllm.sizes import require_same_model, require_sizes
from maxtext.integrations.vllm.tokenizer import with_tokenizer
from maxtext.layers.paged import PagedAttend
from maxtext.models.backend import config_errors, set_up_jax
from maxtext.models.decoder import (
    Architecture,
    Model,
    cached_hidden_states,
    cached_logits,
    model_params,
)
from maxtext.models.fusion import fusion_from_config
from maxtext.models.registry import architecture
from maxtext.ops.paged_attention import Ragged
from maxtext.parallel.layout import Layout, use_layout, use_layout_in_jit
from maxtext.parallel.params import initialize, shardings
from maxtext.parallel.serving import ATTN_DP, DATA, MODEL
from maxtext.types import Array, DType, Float, Int

# Of vLLM's `additional_config`: our command line, a list of `key=value`.
ARGUMENTS = "maxtext"


@dataclasses.dataclass(frozen=True, eq=False)
class Fixed:
    """All of the model but its weights.

    Attributes:
        config: As of our command line.
        architecture: The model.
        specs: Its weights, declared.
        layout: The engine's mesh with our rules.
        dtype: Type of weights and activations.
        vocab_size: Tokens of the tokenizer.
        arguments: Our command line, of which `config` was made.
    """

    config: Config
    architecture: Architecture
    specs: Model
    layout: Layout
    dtype: DType
    vocab_size: int
    arguments: Sequence[str]


def model_arguments(additional: Mapping[str, Any], model: str, mesh: Mesh) -> Sequence[str]:
    """The command line that describes the model.

    Args:
        additional: Of vLLM's config, which may hold it.
        model: Else a Hugging Face folder, or a name on the hub.
        mesh: Then taken as it is.
    """
    if ARGUMENTS in additional:
        return additional[ARGUMENTS]
    return (
        f"load_parameters_path={local_folder(model)}",
        f"ici_data_parallelism={mesh.shape[DATA]}",
        f"ici_tensor_parallelism={mesh.shape[MODEL] * mesh.shape[ATTN_DP]}",
        f"ici_attn_dp_parallelism={mesh.shape[ATTN_DP]}",
    )


def require_synchronous(scheduler: Any) -> None:
    """Raises ConfigError where vLLM would prepare a step before the last one has its tokens."""
    if scheduler.async_scheduling:
        # tpu-inference 0.32.0: a request that lost its pages goes on with tokens that it never had.
        message = "its engine on JAX loses tokens so; start vLLM with --no-async-scheduling"
        raise ConfigError([Problem("async_scheduling", message, value="true")])


def read_model(vllm_config: Any, mesh: Mesh) -> Fixed:
    """What vLLM's config says of the model, on its mesh.

    Raises:
        ConfigError: As `load`, or the mesh is not the one that was asked for, or vLLM would give
            wrong tokens.
    """
    require_synchronous(vllm_config.scheduler_config)
    arguments = model_arguments(vllm_config.additional_config, vllm_config.model_config.model, mesh)
    config = load(arguments, os.environ, model_from_checkpoint=True).config
    set_up_jax(config.run, config.compute)
    config, tokenizer = with_tokenizer(config)
    require_sizes(config, vllm_config.model_config.hf_text_config)
    with config_errors():
        model = architecture(config.model, weight_dtype=config.compute.weight_dtype)
        return Fixed(
            config=config,
            architecture=model,
            specs=model_params(model),
            layout=engine_layout(config, mesh),
            dtype=str(vllm_config.model_config.dtype).removeprefix("torch."),
            vocab_size=tokenizer.vocab_size,
            arguments=arguments,
        )


class MaxTextForCausalLM(nnx.Module):
    """The model class that vLLM is told of: `architectures: ["MaxTextForCausalLM"]`.

    Source: tpu-inference 0.32.0, models/common/model_loader.py.
    """

    # Weights are made in their places here, not traced as a part of something larger.
    _self_manages_sharding = True

    def __init__(self, vllm_config: Any, rng_key: jax.Array, mesh: Mesh) -> None:
        self.fixed = read_model(vllm_config, mesh)
        self.weights: nnx.Param[Any] | None = nnx.data(None)
        # vLLM asks for random weights here, and for others by `load_weights`.
        if vllm_config.load_config.load_format == "dummy":
            self.weights = nnx.Param(serving_weights(self.fixed, random_weights(self.fixed)))

    def load_weights(self, rng_key: jax.Array) -> None:
        """Takes the weights of `read_weights`."""
        self.weights = nnx.Param(self.read_weights())

    def read_weights(self) -> Model:
        """The weights where they are stored now, straight into their shardings.

        Raises:
            ConfigError: There are none, they are damaged, or they are another model's by now.
        """
        fixed = self.fixed
        newest = load(fixed.arguments, os.environ, model_from_checkpoint=True).config
        require_same_model(newest, fixed.config)
        with config_errors():
            stored = load_params(fixed.config, fixed.specs, fixed.layout)
        return serving_weights(fixed, stored)

    def __call__(
        self,
        kv_caches: list[jax.Array],
        input_ids: Int[Array, " T"],
        attention_metadata: Any,
        *others: Any,
    ) -> tuple[list[jax.Array], Float[Array, "T D"], list[jax.Array], None]:
        """The caches with the new tokens, and what `compute_logits` reads of each token."""
        fixed, metadata = self.fixed, attention_metadata
        lengths = metadata.seq_lens
        ragged = Ragged(
            starts=metadata.query_start_loc,
            lengths=lengths,
            page_table=metadata.block_tables.reshape(lengths.shape[0], -1),
            counts=metadata.request_distribution,
        )
        attends = [PagedAttend(ragged, cache, attention_op()) for cache in kv_caches]
        with use_layout_in_jit(fixed.layout):
            hidden = cached_hidden_states(
                fixed.architecture,
                self._model,
                input_ids[None],
                metadata.input_positions[None],
                attends=attends,
                dtype=fixed.dtype,
            )
        return [attend.cache for attend in attends], hidden[0], [], None

    def compute_logits(self, hidden: Float[Array, "T D"]) -> Float[Array, "T W"]:
        """Logits in float32, lowest for what is no token; vLLM wants whole rows on each device."""
        fixed = self.fixed
        with use_layout_in_jit(fixed.layout):
            float32 = fixed.config.compute.logits_dot_in_fp32
            logits = cached_logits(fixed.architecture, self._model, hidden[None], float32=float32)
        logits = logits[0].astype(jnp.float32)
        real = jnp.arange(logits.shape[1]) < fixed.vocab_size
        return jnp.where(real, logits, jnp.finfo(jnp.float32).min)

    def embed_input_ids(self, input_ids: Int[Array, " T"]) -> Float[Array, "T D"]:
        """Embeddings, of which a model with other inputs than text would be handed some."""
        return self._model.token_embedder.embedding[input_ids]

    def modules(self) -> list[Any]:
        """What vLLM cleans up in a model of torch: nothing here."""
        return []

    @property
    def _model(self) -> Model:
        assert self.weights is not None, "load_weights comes first"
        return self.weights.get_value()


def random_weights(fixed: Fixed) -> Model:
    """Those that a training would start from."""
    key = jax.random.key(fixed.config.training.init_weights_seed)
    placed = shardings(fixed.specs, fixed.layout)
    with use_layout(fixed.layout):
        return jax.jit(lambda: initialize(fixed.specs, key), out_shardings=placed)()


def serving_weights(fixed: Fixed, stored: Model) -> Model:
    """Weights as a step wants them; `stored` are given up."""
    model, layout = fixed.architecture, fixed.layout
    fusion = fusion_from_config(fixed.config.compute)
    with use_layout(layout):
        params = engine_params(model, stored, layout, dtype=fixed.dtype, fusion=fusion)
        if layout.log is not None:
            layout.log.write()
    return params

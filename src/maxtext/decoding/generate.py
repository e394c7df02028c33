"""Text from a checkpoint: each token by a forward pass over all tokens so far."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from maxtext.config.errors import ConfigError, Problem
from maxtext.config.schema import Config
from maxtext.conversion.loading import load_weights
from maxtext.data.tokenizer import Tokenizer, load_tokenizer
from maxtext.decoding.sampling import next_token
from maxtext.layers.attentions import training_attend
from maxtext.layers.embeddings import project_to_vocab
from maxtext.models.backend import config_errors, resolve, set_up_jax
from maxtext.models.decoder import (
    Architecture,
    Model,
    Runtime,
    hidden_states,
    model_params,
    output_kernel,
)
from maxtext.models.registry import architecture
from maxtext.parallel.layout import Layout, use_layout
from maxtext.parallel.mesh import make_layout
from maxtext.parallel.params import abstract
from maxtext.parallel.rows import with_whole_rows
from maxtext.parallel.stages import Stages
from maxtext.types import Array, Int


@dataclasses.dataclass(frozen=True, eq=False)
class Generator:
    """A model with its weights on a mesh."""

    config: Config
    layout: Layout
    architecture: Architecture
    params: Model
    tokenizer: Tokenizer

    def stream(self, prompt: str) -> Iterator[str]:
        """The text after `prompt`, in pieces as it comes, to EOS or `max_new_tokens`.

        Raises:
            ConfigError: The prompt is empty, or it and the new tokens exceed `max_target_length`.
        """
        decode, length = self.config.decode, self.config.data.max_target_length
        tokens = self._tokens(prompt)
        row = np.zeros(length, np.int32)
        row[: len(tokens)] = tokens
        new: list[int] = []
        # Decoded alone, the new tokens could lack the space that they begin with.
        shown = len(self.tokenizer.decode(tokens))
        with use_layout(self.layout):
            step = jax.jit(self._step)
            while len(new) < decode.max_new_tokens:
                count = len(tokens) + len(new)
                token = int(step(self.params, row, np.int32(count)))
                if token == self.tokenizer.eos_id:
                    break
                new.append(token)
                row[count] = token
                # A character may take several tokens; half of one decodes to U+FFFD.
                text = self.tokenizer.decode([*tokens, *new]).rstrip("\ufffd")
                yield text[shown:]
                shown = max(shown, len(text))
        yield self.tokenizer.decode([*tokens, *new])[shown:]

    def _tokens(self, prompt: str) -> list[int]:
        """Ids of the prompt, BOS before them where `add_bos` asks for it."""
        data, decode = self.config.data, self.config.decode
        with config_errors():
            tokens = self.tokenizer.encode(prompt)
        if data.add_bos and self.tokenizer.bos_id is not None:
            tokens = [self.tokenizer.bos_id, *tokens]
        if not tokens:
            raise ConfigError([Problem("prompt", "is empty, and add_bos=false gives no token")])
        if len(tokens) + decode.max_new_tokens > data.max_target_length:
            message = (
                f"{len(tokens)} tokens of the prompt and max_new_tokens={decode.max_new_tokens} "
                f"exceed max_target_length={data.max_target_length}"
            )
            hint = "shorten the prompt, lower max_new_tokens or raise max_target_length"
            raise ConfigError([Problem("prompt", message, hint=hint)])
        return tokens

    def _step(self, params: Model, row: Int[Array, " L"], count: Int[Array, ""]) -> Int[Array, ""]:
        """The token after the first `count` of the row."""
        compute, decode = self.config.compute, self.config.decode
        # A copy for each part of the batch axis: so the row fits every mesh.
        shape = (self.layout.ways("activation_batch"), row.shape[0])
        positions = jnp.broadcast_to(jnp.arange(row.shape[0]), shape)
        runtime = Runtime(
            attend=training_attend(compute, (positions < count).astype(jnp.int32), max_segments=1),
            stages=Stages(scan=compute.scan_layers),
            dtype=compute.dtype,
        )
        hidden = hidden_states(
            self.architecture, params, jnp.broadcast_to(row, shape), positions, runtime=runtime
        )
        last = jax.lax.dynamic_slice_in_dim(hidden, count - 1, 1, axis=1)
        logits = project_to_vocab(
            last,
            output_kernel(params),
            float32=compute.logits_dot_in_fp32,
            soft_cap=self.config.model.final_logits_soft_cap,
        )
        key = jax.random.fold_in(jax.random.key(decode.decode_seed), count)
        return next_token(logits[0, 0], key, config=decode, vocab_size=self.tokenizer.vocab_size)


def load_generator(config: Config) -> Generator:
    """The model of `load_parameters_path`, or of the run's newest checkpoint.

    Raises:
        ConfigError: There is no checkpoint, it is damaged or of another model, or the mesh does
            not fit.
    """
    set_up_jax(config.run, config.compute)
    run = Path(config.run.base_output_directory, config.run.run_name)
    with config_errors():
        tokenizer = load_tokenizer(config.data, vocab_size=config.model.vocab_size)
        compute = resolve(
            config.compute,
            config.model,
            backend=jax.default_backend(),
            length=config.data.max_target_length,
        )
        layout = with_whole_rows(make_layout(config.mesh, jax.devices()))
        model = architecture(config.model, weight_dtype=compute.weight_dtype)
        with use_layout(layout):
            params = load_weights(
                config.checkpoint.load_parameters_path or run,
                abstract(model_params(model), layout),
                model=config.model,
            )
    return Generator(
        config=config.model_copy(update={"compute": compute}),
        layout=layout,
        architecture=model,
        params=params,
        tokenizer=tokenizer,
    )

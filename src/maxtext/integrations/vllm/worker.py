"""What vLLM's worker can do beside its own: vLLM's `worker_extension_cls`."""

from typing import Any

import jax

EXTENSION = "maxtext.integrations.vllm.worker.Reloading"


class Reloading:
    """A worker whose model is `MaxTextForCausalLM`.

    Source: tpu-inference 0.32.0, worker/tpu_worker.py and runner/tpu_runner.py.
    """

    model_runner: Any

    def load_newest_weights(self) -> None:
        """Loads the weights of the same place again: of a run, those of its newest step.

        Nothing is compiled anew. What is cached was computed with the old weights: the caller
        resets vLLM's prefix cache, and lets running requests end first.
        """
        runner = self.model_runner
        old = jax.tree.leaves(runner.state)
        new = jax.tree.leaves(runner.model.read_weights())
        same = [(one.shape, one.dtype, one.sharding) for one in old]
        assert [(one.shape, one.dtype, one.sharding) for one in new] == same, "another model"
        runner.state = jax.tree.unflatten(jax.tree.structure(runner.state), new)
        runner.refresh_state_leaves()

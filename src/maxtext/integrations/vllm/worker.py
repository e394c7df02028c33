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
        assert [(x.shape, x.dtype) for x in new] == [(x.shape, x.dtype) for x in old], (
            "another model"
        )
        # As the old ones are described, or vLLM's functions would be compiled anew.
        placed = [
            jax.device_put(*pair) for pair in zip(new, (x.sharding for x in old), strict=True)
        ]
        runner.state = jax.tree.unflatten(jax.tree.structure(runner.state), placed)
        runner.refresh_state_leaves()

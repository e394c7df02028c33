"""The entry point `vllm.general_plugins`, which vLLM calls in each of its processes."""

import os

from maxtext.integrations.vllm.environment import off_tpu, set_up_environment
from maxtext.integrations.vllm.sizes import ARCHITECTURE


def register() -> None:
    """Makes `architectures: ["MaxTextForCausalLM"]` of a config.json our decoder.

    So does `--config-format maxtext` with any model that is built here.
    """
    set_up_environment()
    if off_tpu():
        import jax

        from maxtext.integrations.vllm.off_tpu import adapt

        # Under `vllm serve` jax is imported before this is called, and has read its variable.
        jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
        adapt()
    # After that: these import the runner.
    from tpu_inference.models.common.model_loader import (  # pyright: ignore[reportMissingImports]
        register_model,
    )

    from maxtext.integrations.vllm import vllm_config
    from maxtext.integrations.vllm.model import MaxTextForCausalLM

    register_model(ARCHITECTURE, MaxTextForCausalLM)
    vllm_config.register()

"""What vLLM's own config hears from us, in the process that was started: a server's first."""

import os
from pathlib import Path
from typing import Any

from transformers import LlamaConfig  # pyright: ignore[reportMissingImports]
from vllm.model_executor.models.config import (  # pyright: ignore[reportMissingImports]
    MODELS_CONFIG_MAP,
    VerifyAndUpdateConfig,
)
from vllm.transformers_utils.config import (  # pyright: ignore[reportMissingImports]
    register_config_parser,
)
from vllm.transformers_utils.config_parser_base import (  # pyright: ignore[reportMissingImports]
    ConfigParserBase,
)

from maxtext.config.huggingface_files import CONFIG, read_object
from maxtext.config.load import load
from maxtext.conversion.hub import local_folder
from maxtext.integrations.vllm.model import require_synchronous
from maxtext.integrations.vllm.sizes import ARCHITECTURE, model_json

CONFIG_FORMAT = "maxtext"
# What vLLM takes from a config.json beside the model's sizes.
_KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype")


def register() -> None:
    """Tells vLLM of `--config-format maxtext`, and of what our architecture needs."""
    register_config_parser(CONFIG_FORMAT)(ConfigParser)
    MODELS_CONFIG_MAP[ARCHITECTURE] = Settings


class ConfigParser(ConfigParserBase):
    """Reads a Hugging Face folder as the command line of `maxtext.vllm_decode` would.

    Source: vLLM 0.32.0, transformers_utils/config.py, `register_config_parser`.
    """

    def parse(
        self, model: str | Path, trust_remote_code: bool, **_: Any
    ) -> tuple[dict[str, Any], LlamaConfig]:
        """The model's sizes as those of a Llama, with our architecture.

        Raises:
            ConfigError: It is no folder of a model that is built here.
        """
        folder = local_folder(str(model))
        config = load([f"load_parameters_path={folder}"], os.environ, model_from_checkpoint=True)
        theirs = read_object(folder / CONFIG)
        described = {name: theirs[name] for name in _KEPT if name in theirs}
        described |= model_json(config.config)
        return described, LlamaConfig.from_dict(described, name_or_path=str(model))


class Settings(VerifyAndUpdateConfig):
    """Settings of vLLM's that our architecture cannot run with.

    Source: vLLM 0.32.0, config/vllm.py, `try_verify_and_update_config`.
    """

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Takes asynchronous scheduling back where it is a default, and refuses it else."""
        if vllm_config.scheduler_config.async_scheduling is None:
            vllm_config.scheduler_config.async_scheduling = False
        require_synchronous(vllm_config.scheduler_config)

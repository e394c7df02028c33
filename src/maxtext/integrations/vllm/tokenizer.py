"""The tokenizer that counts under vLLM."""

from maxtext.config.schema import Config
from maxtext.conversion.hub import local_folder
from maxtext.data.tokenizer import Tokenizer, load_tokenizer
from maxtext.models.backend import config_errors


def with_tokenizer(config: Config) -> tuple[Config, Tokenizer]:
    """The tokenizer, and the config with that of `hf_model_name` if it is given.

    Raises:
        ConfigError: There is no such model, or the tokenizer is none.
    """
    with config_errors():
        if config.vllm.hf_model_name:
            folder = local_folder(config.vllm.hf_model_name)
            update = {"tokenizer_type": "huggingface", "tokenizer_path": str(folder)}
            config = config.model_copy(update={"data": config.data.model_copy(update=update)})
        return config, load_tokenizer(config.data, vocab_size=config.model.vocab_size)

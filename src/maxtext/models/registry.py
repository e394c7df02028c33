"""The families by `decoder_block`."""

from maxtext.config.schema import ModelConfig
from maxtext.models import llama
from maxtext.models.decoder import Architecture, Family
from maxtext.types import DType

FAMILIES: dict[str, Family] = {"llama2": llama.groups, "qwen3": llama.groups}


def architecture(config: ModelConfig, *, weight_dtype: DType) -> Architecture:
    """The model that `decoder_block` and the sizes name, its weights of type `weight_dtype`."""
    groups = FAMILIES[config.decoder_block](config, dtype=weight_dtype)
    return Architecture(config=config, groups=groups, weight_dtype=weight_dtype)

"""The families by `decoder_block`."""

from maxtext.config.schema import ModelConfig
from maxtext.layers.normalizations import centered_norm_params, norm_params
from maxtext.models import gemma, llama
from maxtext.models.decoder import Architecture, Family
from maxtext.types import DType

_LLAMA = Family(llama.groups, norm_params)
_GEMMA = Family(gemma.groups, centered_norm_params, scaled_embeddings=True)
FAMILIES: dict[str, Family] = {
    "llama2": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
}


def architecture(config: ModelConfig, *, weight_dtype: DType) -> Architecture:
    """The model that `decoder_block` and the sizes name, its weights of type `weight_dtype`."""
    family = FAMILIES[config.decoder_block]
    groups = family.groups(config, dtype=weight_dtype)
    return Architecture(config=config, family=family, groups=groups, weight_dtype=weight_dtype)

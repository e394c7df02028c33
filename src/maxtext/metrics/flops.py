"""FLOPs of training, from the weights that are declared and the attention that runs."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from maxtext.config.schema import ModelConfig
from maxtext.ops.attention import num_query_blocks
from maxtext.parallel.params import Param

type Attention = Literal["dot_product", "flash"]

# Scales of norms and biases are multiplied or added, not contracted.
_NO_PRODUCT = ("scale", "bias")


@dataclasses.dataclass(frozen=True)
class TrainFlops:
    """Model FLOPs of one token, forward and backward; recomputation is not model work.

    Attributes:
        weights: Products with weights, FLOPs per token.
        attention: Products of queries, keys and values, FLOPs per token.
    """

    weights: int
    attention: int

    @property
    def per_token(self) -> int:
        """FLOPs per token in all."""
        return self.weights + self.attention


def train_flops(
    weights: Mapping[str, Param], config: ModelConfig, *, attention: Attention, length: int
) -> TrainFlops:
    """FLOPs of one token in a row of `length` tokens.

    Every weight that is contracted costs two FLOPs forward and four backward. The lookup of an
    embedding costs none; a tied embedding is contracted as the head.

    Args:
        weights: The spec tree under its names, `named_leaves(specs)`.
        config: The model that the weights belong to.
        attention: The implementation that runs: `flash` skips the pairs of positions that the
            causal mask hides, `dot_product` those after the end of each block of queries.
        length: Tokens of a row.

    Source: Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B.
    """
    contracted = sum(one.size for name, one in weights.items() if _is_contracted(name, config))
    pairs = config.num_decoder_layers * length * config.num_query_heads * config.head_dim
    if attention == "flash":
        return TrainFlops(weights=6 * contracted, attention=6 * pairs)
    blocks = num_query_blocks(length)
    return TrainFlops(weights=6 * contracted, attention=6 * pairs * (blocks + 1) // blocks)


def _is_contracted(name: str, config: ModelConfig) -> bool:
    kind = name.rsplit("/", 1)[-1]
    if kind == "embedding":
        return config.logits_via_embedding
    assert kind == "kernel" or kind in _NO_PRODUCT, f"the FLOPs of {name} are unknown"
    return kind == "kernel"

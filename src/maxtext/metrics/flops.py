"""FLOPs of training, from the weights that are declared and the attention that runs."""

import dataclasses
from collections.abc import Mapping

from maxtext.config.schema import ModelConfig
from maxtext.models.decoder import Architecture
from maxtext.ops.attention import AttentionPattern, query_blocks
from maxtext.parallel.params import Param

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
    attention: float

    @property
    def per_token(self) -> float:
        """FLOPs per token in all."""
        return self.weights + self.attention


def train_flops(
    weights: Mapping[str, Param], architecture: Architecture, *, attention: str, length: int
) -> TrainFlops:
    """FLOPs of one token in a row of `length` tokens.

    Every weight that is contracted costs two FLOPs forward and four backward. The lookup of an
    embedding costs none; a tied embedding is contracted as the head.

    Args:
        weights: The spec tree under its names, `named_leaves(specs)`.
        architecture: The model that the weights belong to.
        attention: The implementation that runs: `dot_product` multiplies whole blocks of
            positions, the others only the pairs that the causal mask and the window leave.
        length: Tokens of a row.

    Source: Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, appendix B.
    """
    config = architecture.config
    contracted = sum(one.size for name, one in weights.items() if _is_contracted(name, config))
    pairs = _block_pairs if attention == "dot_product" else _visible_pairs
    in_all = sum(pairs(kind.pattern, length) for kind in architecture.layers)
    heads = config.num_query_heads * config.head_dim
    # Queries by keys and weights by values, each a product forward and two backward.
    return TrainFlops(weights=6 * contracted, attention=12 * heads * in_all / length)


def _visible_pairs(pattern: AttentionPattern, length: int) -> float:
    """Queries times keys that they see, a token counting half of itself."""
    window = min(pattern.window or length, length)
    return window * length - window**2 / 2


def _block_pairs(pattern: AttentionPattern, length: int) -> float:
    """Queries times the keys of their block's products."""
    blocks = query_blocks(length, window=pattern.window)
    return sum((q.stop - q.start) * (k.stop - k.start) for q, k in blocks)


def _is_contracted(name: str, config: ModelConfig) -> bool:
    kind = name.rsplit("/", 1)[-1]
    if kind == "embedding":
        return config.logits_via_embedding
    assert kind == "kernel" or kind in _NO_PRODUCT, f"the FLOPs of {name} are unknown"
    return kind == "kernel"

"""Projections of one input in one kernel: a way to hold and run the weights of a model.

Weights are declared, drawn, updated and stored apart, whatever is fused: only where products are
taken do they lie together. So no optimizer, checkpoint or conversion knows of it, and a run that
fuses takes the steps of one that does not.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from maxtext.config.schema import ComputeConfig
from maxtext.layers.attentions import Attention, FusedAttention
from maxtext.layers.linears import FusedMlp, Mlp, join, join_linears, join_specs, split_linear

type Join = Callable[[Sequence[Any]], Any]


@dataclasses.dataclass(frozen=True)
class Fusion:
    """Which projections are fused.

    Attributes:
        qkv: Queries, keys and values of attention.
        mlp: Gate and input of the feed-forward layer.
    """

    qkv: bool = False
    mlp: bool = False

    def joined[T](self, tree: T, leaf: Join = join) -> T:
        """A tree of weights, or of what has their shape, with what is fused together.

        Args:
            tree: Weights apart, of a model or of a layer.
            leaf: What joins its leaves.
        """

        def one(node: Any) -> Any:
            if isinstance(node, Attention) and self.qkv:
                parts = (node.query, node.key, node.value)
                return FusedAttention(
                    qkv_proj=join_linears(parts, leaf),
                    out=node.out,
                    query_norm=node.query_norm,
                    key_norm=node.key_norm,
                )
            if isinstance(node, Mlp) and self.mlp:
                assert node.wi_1 is not None, "the config refuses fused_mlp without a gate"
                return FusedMlp(wi=join_linears((node.wi_0, node.wi_1), leaf), wo=node.wo)
            return node

        return jax.tree.map(one, tree, is_leaf=lambda node: isinstance(node, Attention | Mlp))

    def specs[T](self, specs: T) -> T:
        """The declaration of what `joined` makes of declared weights."""
        return self.joined(specs, join_specs)

    def apart[T](self, tree: T) -> T:
        """The tree that `joined` was given; None in the place of an array stays."""

        def one(node: Any) -> Any:
            if isinstance(node, FusedAttention):
                query, key, value = split_linear(node.qkv_proj, 3)
                return Attention(
                    query=query,
                    key=key,
                    value=value,
                    out=node.out,
                    query_norm=node.query_norm,
                    key_norm=node.key_norm,
                )
            if isinstance(node, FusedMlp):
                wi_0, wi_1 = split_linear(node.wi, 2)
                return Mlp(wi_0=wi_0, wi_1=wi_1, wo=node.wo)
            return node

        fused = FusedAttention | FusedMlp
        return jax.tree.map(one, tree, is_leaf=lambda node: isinstance(node, fused))


NOTHING_FUSED = Fusion()


def fusion_from_config(config: ComputeConfig) -> Fusion:
    """What `fused_qkv` and `fused_mlp` ask for."""
    return Fusion(qkv=config.fused_qkv, mlp=config.fused_mlp)

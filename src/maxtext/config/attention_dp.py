"""How requests and heads share the devices of `ici_tensor_parallelism` while attention runs."""

import dataclasses
import math
from typing import Literal

from maxtext.config.schema import MeshConfig, ModelConfig

type Variant = Literal["off", "replicated", "Q only", "Q+K+V"]


@dataclasses.dataclass(frozen=True)
class AttentionDP:
    """Attention data parallelism, its degree known.

    Attributes:
        attn_dp: Groups of devices, each with requests of its own; 1 is plain tensor parallelism.
        model: Devices of a group, which split its heads.
        variant: Which projections are stored once for all groups: `replicated` is none of them, `Q
            only` those of queries and outputs, `Q+K+V` all. `off` where there is one group.
        why: What decided it, in words.
    """

    attn_dp: int
    model: int
    variant: Variant
    why: str

    @property
    def sharded(self) -> bool:
        """Whether the projections of queries and outputs are stored once for all groups."""
        return self.variant in ("Q only", "Q+K+V")

    @property
    def text(self) -> str:
        """Groups, variant and reason."""
        groups = f"{self.attn_dp} groups of {self.model}, " if self.attn_dp > 1 else ""
        return f"{groups}{self.variant}: {self.why}"


def derived_degree(tensor: int, kv_heads: int) -> int:
    """The smallest number of groups in which no device holds a key and value head that another has.

    Units: groups; `tensor` is devices.
    """
    return tensor // math.gcd(tensor, kv_heads)


def attention_dp(mesh: MeshConfig, model: ModelConfig) -> AttentionDP:
    """What a config that has no clashes asks for.

    Source: the AWS Neuron documentation, Attention DP, for the variants.
    """
    tensor, kv_heads = mesh.ici_tensor_parallelism, model.num_kv_heads
    asked = mesh.ici_attn_dp_parallelism
    if not mesh.enable_dp_attention and asked == -1:
        return AttentionDP(1, tensor, "off", "enable_dp_attention=false")
    if asked == -1:
        degree = derived_degree(tensor, kv_heads)
        why = f"{kv_heads} key and value heads on {tensor} devices"
        if degree == 1:
            why += ", of which none is held twice"
    else:
        degree, why = asked, f"ici_attn_dp_parallelism={asked}"
    if degree == 1:
        return AttentionDP(1, tensor, "off", why)
    variant, because = _variant(mesh.attn_dp_weights, tensor, model)
    return AttentionDP(degree, tensor // degree, variant, f"{why}; {because}")


def announcement(mesh: MeshConfig, model: ModelConfig) -> str | None:
    """What programs that serve say of it once; None where nothing is asked of it."""
    if not mesh.enable_dp_attention and mesh.ici_attn_dp_parallelism == -1:
        return None
    return f"attention data parallelism: {attention_dp(mesh, model).text}"


def _variant(weights: str, tensor: int, model: ModelConfig) -> tuple[Variant, str]:
    heads, kv_heads = model.num_query_heads, model.num_kv_heads
    if weights == "replicated":
        return "replicated", "attn_dp_weights=replicated"
    if heads % tensor:
        return "replicated", f"{heads} query heads do not divide over {tensor} devices"
    if kv_heads % tensor == 0:
        return "Q+K+V", f"{heads} query and {kv_heads} key heads divide over {tensor} devices"
    return "Q only", f"{heads} query heads divide over {tensor} devices, {kv_heads} key heads not"

"""For each family where other projects keep its weights: one table, read in both directions.

Ours are stacked, `[layers, embed, heads, head_dim]`; theirs are one tensor a layer, `[heads *
head_dim, embed]`, as torch has the dims that are summed over last.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Entry:
    """Where others keep one of our weights; `{layer}` in a name is the layer's number.

    Attributes:
        huggingface: Hugging Face's name.
        gguf: GGUF's name.
        num_in: Of a kernel, how many dims of ours are summed over; 0 for the rest.
        flat: Theirs has one dim.
        turned: RoPE turns what comes out of it.
    """

    huggingface: str
    gguf: str
    num_in: int = 0
    flat: bool = False
    turned: bool = False

    @property
    def stacked(self) -> bool:
        """Whether each layer has one."""
        return "{layer}" in self.huggingface

    def their_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Hugging Face's shape of one layer's tensor whose shape is `shape` here."""
        if self.num_in:
            return math.prod(shape[self.num_in :]), math.prod(shape[: self.num_in])
        return (math.prod(shape),) if self.flat else shape

    def to_ours(self, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Hugging Face's tensor as ours, of one layer."""
        return (tensor.T if self.num_in else tensor).reshape(shape)

    def to_theirs(self, array: np.ndarray) -> np.ndarray:
        """Ours, of one layer, as Hugging Face's tensor."""
        theirs = self.their_shape(array.shape)
        return array.reshape(theirs[::-1]).T if self.num_in else array.reshape(theirs)


def _layer(huggingface: str, gguf: str, **how: Any) -> Entry:
    return Entry(f"model.layers.{{layer}}.{huggingface}", f"blk.{{layer}}.{gguf}", **how)


_ENDS = {
    "token_embedder/embedding": Entry("model.embed_tokens.weight", "token_embd.weight"),
    "decoder/decoder_norm/scale": Entry("model.norm.weight", "output_norm.weight"),
    "decoder/logits_dense/kernel": Entry("lm_head.weight", "output.weight", num_in=1),
}
_ATTENTION = {
    "query/kernel": _layer("self_attn.q_proj.weight", "attn_q.weight", num_in=1, turned=True),
    "key/kernel": _layer("self_attn.k_proj.weight", "attn_k.weight", num_in=1, turned=True),
    "value/kernel": _layer("self_attn.v_proj.weight", "attn_v.weight", num_in=1),
    "out/kernel": _layer("self_attn.o_proj.weight", "attn_output.weight", num_in=2),
    "query/bias": _layer("self_attn.q_proj.bias", "attn_q.bias", flat=True, turned=True),
    "key/bias": _layer("self_attn.k_proj.bias", "attn_k.bias", flat=True, turned=True),
    "value/bias": _layer("self_attn.v_proj.bias", "attn_v.bias", flat=True),
    "query_norm/scale": _layer("self_attn.q_norm.weight", "attn_q_norm.weight"),
    "key_norm/scale": _layer("self_attn.k_norm.weight", "attn_k_norm.weight"),
}
_MLP = {
    "wi_0/kernel": _layer("mlp.gate_proj.weight", "ffn_gate.weight", num_in=1),
    "wi_1/kernel": _layer("mlp.up_proj.weight", "ffn_up.weight", num_in=1),
    "wo/kernel": _layer("mlp.down_proj.weight", "ffn_down.weight", num_in=1),
}
_LLAMA_NORMS = {
    "pre_self_attention_layer_norm/scale": _layer("input_layernorm.weight", "attn_norm.weight"),
    "post_self_attention_layer_norm/scale": _layer(
        "post_attention_layernorm.weight", "ffn_norm.weight"
    ),
}
_GEMMA_NORMS = {
    "pre_self_attention_norm/scale": _layer("input_layernorm.weight", "attn_norm.weight"),
    "post_self_attention_norm/scale": _layer(
        "post_attention_layernorm.weight", "post_attention_norm.weight"
    ),
    "pre_ffw_norm/scale": _layer("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    "post_ffw_norm/scale": _layer("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
}


def _decoder(norms: Mapping[str, Entry]) -> dict[str, Entry]:
    layers = {
        **norms,
        **{f"self_attention/{name}": entry for name, entry in _ATTENTION.items()},
        **{f"mlp/{name}": entry for name, entry in _MLP.items()},
    }
    return {**_ENDS, **{f"decoder/layers/{name}": entry for name, entry in layers.items()}}


# What a model of the family does not have, by its config, is passed over.
TABLES: Mapping[str, Mapping[str, Entry]] = {
    "llama2": _decoder(_LLAMA_NORMS),
    "mistral": _decoder(_LLAMA_NORMS),
    "qwen2": _decoder(_LLAMA_NORMS),
    "qwen3": _decoder(_LLAMA_NORMS),
    "gemma2": _decoder(_GEMMA_NORMS),
    "gemma3": _decoder(_GEMMA_NORMS),
}

"""What tells the layers of one stack apart: how far they see, and how they count positions."""

import dataclasses

from maxtext.config.schema import ModelConfig
from maxtext.ops.attention import AttentionPattern
from maxtext.ops.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling


@dataclasses.dataclass(frozen=True)
class LayerKind:
    """A kind of layer: static, and the same weights whatever it is.

    Attributes:
        pattern: What its attention sees.
        rope: How its queries and keys are rotated.
    """

    pattern: AttentionPattern
    rope: Rope


def global_kind(config: ModelConfig) -> LayerKind:
    """Layers that see every earlier token."""
    return LayerKind(_pattern(config, window=None), rope(config))


def local_kind(config: ModelConfig) -> LayerKind:
    """Layers that see `sliding_window_size` tokens, with a RoPE of their own if it has one."""
    rotary = rope(config)
    if config.local_rope_max_timescale > 0:
        rotary = Rope(config.head_dim, config.local_rope_max_timescale)
    return LayerKind(_pattern(config, window=config.sliding_window_size), rotary)


def only_kind(config: ModelConfig) -> LayerKind:
    """The layers of a model whose layers are all alike."""
    return LayerKind(_pattern(config, window=config.sliding_window_size or None), rope(config))


def rope(config: ModelConfig) -> Rope:
    """The model's RoPE, as `rope_type` asks for it."""
    length = config.original_max_position_embeddings
    match config.rope_type:
        case "default":
            scaling = None
        case "linear":
            scaling = LinearScaling(config.rope_linear_scaling_factor)
        case "llama3.1":
            scaling = Llama3Scaling(
                factor=config.rope_factor,
                low_freq_factor=config.rope_low_freq_factor,
                high_freq_factor=config.rope_high_freq_factor,
                original_length=length,
            )
        case "yarn":
            scaling = YarnScaling(
                factor=config.rope_factor,
                beta_fast=config.beta_fast,
                beta_slow=config.beta_slow,
                original_length=length,
                truncate=config.rope_truncate,
                mscale=config.mscale if config.rope_attention_scaling else 0.0,
            )
    return Rope(config.head_dim, config.rope_max_timescale, scaling)


def _pattern(config: ModelConfig, *, window: int | None) -> AttentionPattern:
    return AttentionPattern(
        scale=(config.query_pre_attn_scalar or config.head_dim) ** -0.5,
        window=window,
        soft_cap=config.attn_logits_soft_cap or None,
    )

"""Settings of a model, and of kernels for it, that exclude each other."""

from collections.abc import Iterator, Mapping, Set

from maxtext.config.errors import Clash
from maxtext.config.numbers import divisors, listed
from maxtext.config.schema import Config, ModelConfig

# Families some of whose layers have a sliding window, and others none.
_ALTERNATING = ("gemma2", "gemma3")
_LARGEST_HEAD = 256
_ROPE_TYPES: Mapping[str, tuple[str, ...]] = {
    "rope_linear_scaling_factor": ("linear",),
    "rope_factor": ("llama3.1", "yarn"),
    "rope_low_freq_factor": ("llama3.1",),
    "rope_high_freq_factor": ("llama3.1",),
    "beta_fast": ("yarn",),
    "beta_slow": ("yarn",),
    "rope_truncate": ("yarn",),
    "rope_attention_scaling": ("yarn",),
    "mscale": ("yarn",),
}


def clashes(config: Config, user_keys: Set[str]) -> Iterator[Clash]:
    """Everything wrong with the model, and with the kernels for it, that keys together show.

    Args:
        config: Valid by the schema.
        user_keys: The keys that the user set, rather than the defaults or a model file.
    """
    yield from model_clashes(config.model)
    yield from _ignored(config.model, user_keys)
    yield from _fused(config)
    yield from _cudnn(config)


def model_clashes(model: ModelConfig) -> Iterator[Clash]:
    """What is wrong with a model by itself."""
    yield from _heads(model)
    yield from _windows(model)
    yield from _rope(model)
    if not 1 <= len(model.mlp_activations) <= 2:
        yield Clash(
            ("mlp_activations",),
            "must have one entry, or two for a gated feed-forward layer",
            "[silu, linear] is SwiGLU, [relu] is plain",
        )


def _heads(model: ModelConfig) -> Iterator[Clash]:
    if model.num_query_heads % model.num_kv_heads:
        work = listed(divisors(model.num_query_heads), near=model.num_kv_heads)
        yield Clash(
            ("base_num_kv_heads", "base_num_query_heads"),
            "query heads must be a multiple of kv heads",
            f"with {model.num_query_heads} query heads, base_num_kv_heads may be {work}",
        )
    if model.head_dim % 2:
        around = f"use {model.head_dim - 1} or {model.head_dim + 1}"
        hint = "use 2" if model.head_dim == 1 else around
        yield Clash(("head_dim",), "must be even: RoPE turns pairs of channels", hint)


def _windows(model: ModelConfig) -> Iterator[Clash]:
    if model.decoder_block in _ALTERNATING and model.sliding_window_size == 0:
        yield Clash(
            ("sliding_window_size", "decoder_block"),
            f"{model.decoder_block} has layers with a sliding window, whose size is missing",
            "Gemma 2 was released with 4096, Gemma 3 with 512 or 1024",
        )
    local = model.local_rope_max_timescale
    if local != -1 and local <= 0:
        yield Clash(("local_rope_max_timescale",), "must be -1 or above 0", "Gemma 3 uses 10000.0")


def _ignored(model: ModelConfig, user_keys: Set[str]) -> Iterator[Clash]:
    # Whoever names the type as well knows what counts.
    asked = user_keys if "rope_type" not in user_keys else frozenset[str]()
    for key, types in _ROPE_TYPES.items():
        if key in asked and model.rope_type not in types:
            message = f"would be ignored: it counts with rope_type={' or '.join(types)} only"
            yield Clash((key, "rope_type"), message, "set that rope_type, or leave the key out")
    if model.local_rope_max_timescale != -1 and model.decoder_block not in _ALTERNATING:
        yield Clash(
            ("local_rope_max_timescale", "decoder_block"),
            f"would be ignored: {model.decoder_block} has one kind of layer",
            f"use rope_max_timescale, or decoder_block={' or '.join(_ALTERNATING)}",
        )


def _rope(model: ModelConfig) -> Iterator[Clash]:
    if model.rope_type == "linear" and model.rope_linear_scaling_factor == 1:
        message = "rope_type=linear changes nothing with a factor of 1"
        hint = "set rope_linear_scaling_factor, or rope_type=default"
        yield Clash(("rope_linear_scaling_factor", "rope_type"), message, hint)
    llama3 = model.rope_type == "llama3.1"
    if llama3 and model.rope_high_freq_factor <= model.rope_low_freq_factor:
        yield Clash(
            ("rope_high_freq_factor", "rope_low_freq_factor"),
            "rope_high_freq_factor must be larger than rope_low_freq_factor",
            "Llama 3.1 uses 4.0 and 1.0",
        )
    if model.rope_type == "yarn" and model.beta_fast <= model.beta_slow:
        message = "beta_fast must be larger than beta_slow"
        yield Clash(("beta_fast", "beta_slow"), message, "the paper uses 32.0 and 1.0")


def _fused(config: Config) -> Iterator[Clash]:
    if config.compute.fused_mlp and len(config.model.mlp_activations) == 1:
        message = "there is one input projection, which has nothing to be fused with"
        yield Clash(("fused_mlp", "mlp_activations"), message, "set fused_mlp=false")


def _cudnn(config: Config) -> Iterator[Clash]:
    attention, model, data = config.compute.attention, config.model, config.data
    if attention not in ("cudnn_flash_jax", "cudnn_flash_te"):
        return
    instead = "use attention=dot_product"
    if model.attn_logits_soft_cap:
        yield Clash(("attention", "attn_logits_soft_cap"), "cuDNN has no soft cap", instead)
    if model.head_dim % 8 or model.head_dim > _LARGEST_HEAD:
        message = f"cuDNN wants a multiple of 8, at most {_LARGEST_HEAD}"
        yield Clash(("attention", "head_dim"), message, instead)
    if data.max_target_length % 2:
        yield Clash(("attention", "max_target_length"), "cuDNN wants an even length", instead)
    if attention == "cudnn_flash_te" and data.packing and data.max_segments_per_seq == -1:
        message = "Transformer Engine must know how many documents a row holds at most"
        hint = "set max_segments_per_seq, for example 32, or packing=false"
        yield Clash(("max_segments_per_seq", "attention"), message, hint)

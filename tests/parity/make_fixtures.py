"""Writes fixtures/*.npz: tiny random models of transformers with their logits.

Run by hand where torch and transformers are installed, which no test needs:

    python tests/parity/make_fixtures.py [name ...]

Made with torch 2.13.0 and transformers 5.24.0, from `mistral` on 5.19.0, and `llama_12_heads` with
torch 2.10.0. Each file holds the settings under our key names (JSON in `settings`), the weights
under Hugging Face's names in float32, `tokens` [2, length] and `logits` [2, length, vocab],
computed in float64. `rope.json` is a list of settings, each with the frequencies and the factor of
cosines and sines that it gives.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FOLDER = Path(__file__).parent / "fixtures"
VOCAB = 61
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
# Variants of rope_parameters for `rope.json`, of a head_dim of 64.
ROPES = [
    {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    LLAMA3 | {"rope_theta": 5e5, "original_max_position_embeddings": 8192},
    YARN | {"original_max_position_embeddings": 4096},
    YARN | {"rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 32768},
    YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    YARN | {"factor": 40.0, "original_max_position_embeddings": 4096, "attention_factor": 1.0},
    YARN | {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1e-30},
    YARN | {"factor": 1.0},
]


def plain(theta: float) -> dict:
    return {"rope_type": "default", "rope_theta": theta}


def shared(heads: int, kv_heads: int, head_dim: int, rope: dict, *, tied: bool) -> dict:
    return {
        "vocab_size": VOCAB,
        "hidden_size": 36,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 256,
        "rope_parameters": rope,
        "tie_word_embeddings": tied,
        "rms_norm_eps": 1e-5,
    }


def shared_gemma(layers: int, *, tied: bool) -> dict:
    """Sizes of Gemma, smaller as there are more layers of it."""
    return {
        "vocab_size": VOCAB,
        "hidden_size": 20,
        "intermediate_size": 28,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": 256,
        "query_pre_attn_scalar": 17,
        "sliding_window": 9,
        "tie_word_embeddings": tied,
        "rms_norm_eps": 1e-6,
    }


GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0},
    "sliding_attention": plain(1e3),
}
CASES = {
    "llama_gqa": (LlamaForCausalLM, LlamaConfig(**shared(6, 2, 8, plain(1e4), tied=False)), 48),
    "llama_scaled": (LlamaForCausalLM, LlamaConfig(**shared(6, 2, 16, LLAMA3, tied=False)), 96),
    "llama_mqa_tied": (LlamaForCausalLM, LlamaConfig(**shared(4, 1, 8, plain(5e5), tied=True)), 48),
    "llama_12_heads": (
        LlamaForCausalLM,
        LlamaConfig(**shared(12, 2, 8, plain(1e4), tied=True)),
        48,
    ),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**shared(6, 2, 16, plain(1e6), tied=True)), 48),
    "mistral": (
        MistralForCausalLM,
        MistralConfig(**shared(6, 2, 8, plain(1e4), tied=False), sliding_window=7),
        48,
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**shared(6, 2, 8, YARN, tied=True)), 80),
    "llama_linear": (LlamaForCausalLM, LlamaConfig(**shared(6, 2, 8, LINEAR, tied=False)), 64),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config(
            **shared_gemma(5, tied=True),
            rope_parameters=plain(1e4),
            attn_logit_softcapping=3.0,
            final_logit_softcapping=5.0,
        ),
        48,
    ),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(**shared_gemma(8, tied=True), rope_parameters=GEMMA3_ROPE),
        48,
    ),
    "gemma3_untied": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(
            **shared_gemma(3, tied=False),
            rope_parameters={kind: plain(1e4) for kind in GEMMA3_ROPE},
        ),
        32,
    ),
}
BLOCKS = {"llama": "llama2", "gemma3_text": "gemma3"}


def settings_of(config: PreTrainedConfig) -> dict:
    """The model under our key names."""
    given = config.to_dict()
    settings = {
        "decoder_block": BLOCKS.get(config.model_type, config.model_type),
        "use_qk_norm": config.model_type in ("qwen3", "gemma3_text"),
        "vocab_size": config.vocab_size,
        "base_emb_dim": config.hidden_size,
        "base_mlp_dim": config.intermediate_size,
        "base_num_decoder_layers": config.num_hidden_layers,
        "base_num_query_heads": config.num_attention_heads,
        "base_num_kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "logits_via_embedding": config.tie_word_embeddings,
        "normalization_layer_epsilon": config.rms_norm_eps,
    }
    if config.model_type == "qwen2":
        settings["attention_bias"] = True
    if config.model_type.startswith("gemma"):
        settings["mlp_activations"] = "gelu,linear"
    for ours, theirs in (
        ("query_pre_attn_scalar", "query_pre_attn_scalar"),
        ("sliding_window_size", "sliding_window"),
        ("attn_logits_soft_cap", "attn_logit_softcapping"),
        ("final_logits_soft_cap", "final_logit_softcapping"),
    ):
        if given.get(theirs) is not None:
            settings[ours] = given[theirs]
    rope = config.rope_parameters
    if "full_attention" in rope:
        settings["local_rope_max_timescale"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    return settings | rope_settings(rope)


def rope_settings(rope: dict) -> dict:
    """RoPE under our key names."""
    kind = rope["rope_type"]
    settings = {
        "rope_type": "llama3.1" if kind == "llama3" else kind,
        "rope_max_timescale": rope["rope_theta"],
    }
    names = {"factor": "rope_linear_scaling_factor" if kind == "linear" else "rope_factor"}
    names |= {"low_freq_factor": "rope_low_freq_factor"}
    names |= {"high_freq_factor": "rope_high_freq_factor", "truncate": "rope_truncate"}
    kept = ("original_max_position_embeddings", "beta_fast", "beta_slow", "mscale")
    names |= {name: name for name in kept}
    settings |= {names[name]: value for name, value in rope.items() if name in names}
    if rope.get("attention_factor") == 1.0:
        settings["rope_attention_scaling"] = False
    return settings


def randomize(model: torch.nn.Module) -> None:
    """Numbers large enough that every weight shows in the logits, norms' scales too."""
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            kept_less_1 = "bias" in name or model.config.model_type.startswith("gemma")
            torch.nn.init.uniform_(weight, *((-0.5, 0.5) if kept_less_1 else (0.5, 1.5)))
        else:
            spread = 0.5 if "embed" in name else 1.5 * weight.shape[1] ** -0.5
            torch.nn.init.normal_(weight, std=spread)


def write_ropes() -> None:
    """Frequencies and factors of `ROPES`."""
    found = []
    for rope in ROPES:
        config = LlamaConfig(head_dim=64, max_position_embeddings=131072, rope_parameters=rope)
        frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
        found.append(
            {
                "settings": rope_settings(rope) | {"head_dim": 64},
                "frequencies": [float(f"{value:.8g}") for value in frequencies.tolist()],
                "factor": factor,
            }
        )
    (FOLDER / "rope.json").write_text(json.dumps(found) + "\n")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    if not sys.argv[1:] or "rope" in sys.argv[1:]:
        write_ropes()
    for name in sys.argv[1:] or CASES:
        if name not in CASES:
            continue
        family, config, length = CASES[name]
        torch.manual_seed(0)
        config._attn_implementation = "eager"
        model = family(config).eval()
        randomize(model)
        weights = {key: weight.detach().numpy().copy() for key, weight in model.named_parameters()}
        tokens = torch.randint(0, VOCAB, (2, length))
        with torch.no_grad():
            logits = model.double()(tokens).logits
        np.savez_compressed(
            FOLDER / f"{name}.npz",
            settings=np.asarray(json.dumps(settings_of(config))),
            tokens=tokens.numpy().astype(np.int32),
            logits=logits.numpy().astype(np.float32),
            **weights,
        )
        print(name, (FOLDER / f"{name}.npz").stat().st_size, logits.std().item())


if __name__ == "__main__":
    main()

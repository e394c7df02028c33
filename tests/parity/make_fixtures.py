"""Writes fixtures/*.npz: tiny random models of transformers with their logits.

Run by hand where torch and transformers are installed, which no test needs:

    python tests/parity/make_fixtures.py

Made with torch 2.13.0 and transformers 5.24.0. Each file holds the settings under our key names
(JSON in `settings`), the weights under Hugging Face's names in float32, `tokens` [2, length] and
`logits` [2, length, vocab], computed in float64.
"""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

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


CASES = {
    "llama_gqa": (LlamaForCausalLM, LlamaConfig(**shared(6, 2, 8, plain(1e4), tied=False)), 48),
    "llama_scaled": (LlamaForCausalLM, LlamaConfig(**shared(6, 2, 16, LLAMA3, tied=False)), 96),
    "llama_mqa_tied": (LlamaForCausalLM, LlamaConfig(**shared(4, 1, 8, plain(5e5), tied=True)), 48),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**shared(6, 2, 16, plain(1e6), tied=True)), 48),
}


def settings_of(config: LlamaConfig | Qwen3Config) -> dict:
    """The model under our key names."""
    rope = config.rope_parameters
    settings = {
        "decoder_block": "qwen3" if config.model_type == "qwen3" else "llama2",
        "use_qk_norm": config.model_type == "qwen3",
        "vocab_size": config.vocab_size,
        "base_emb_dim": config.hidden_size,
        "base_mlp_dim": config.intermediate_size,
        "base_num_decoder_layers": config.num_hidden_layers,
        "base_num_query_heads": config.num_attention_heads,
        "base_num_kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "logits_via_embedding": config.tie_word_embeddings,
        "normalization_layer_epsilon": config.rms_norm_eps,
        "rope_type": "llama3.1" if rope["rope_type"] == "llama3" else "default",
        "rope_max_timescale": rope["rope_theta"],
    }
    if rope["rope_type"] == "llama3":
        settings |= {
            "rope_factor": rope["factor"],
            "rope_low_freq_factor": rope["low_freq_factor"],
            "rope_high_freq_factor": rope["high_freq_factor"],
            "original_max_position_embeddings": rope["original_max_position_embeddings"],
        }
    return settings


def randomize(model: torch.nn.Module) -> None:
    """Numbers large enough that every weight shows in the logits, norms' scales too."""
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
        else:
            spread = 0.5 if "embed" in name else 1.5 * weight.shape[1] ** -0.5
            torch.nn.init.normal_(weight, std=spread)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, (family, config, length) in CASES.items():
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

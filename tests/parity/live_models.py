"""What tests/parity/test_live.py asks of torch and transformers, in a process that has them.

python live_models.py make FOLDER     tiny random models of every family, with their logits
python live_models.py check FOLDER    the logits of what we wrote beside each
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

VOCAB, LENGTH = 61, 40
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 36,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
YARN |= {"original_max_position_embeddings": 16}
LOCAL = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA = {"query_pre_attn_scalar": 12, "sliding_window": 9}
MODELS = {
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "llama_tied": ("Llama", {"tie_word_embeddings": True, "num_attention_heads": 12}),
    "llama_scaled": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": 9}),
    "qwen2": ("Qwen2", {}),
    "qwen2_yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "gemma2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3", {**GEMMA, "num_hidden_layers": 8, "rope_parameters": LOCAL}),
}


def randomize(model: torch.nn.Module) -> None:
    """Numbers large enough that every weight shows in the logits."""
    for weight in model.parameters():
        if weight.ndim == 1:
            torch.nn.init.uniform_(weight, -0.5, 0.5)
            continue
        torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)


def logits(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """Of a folder's model in float64, by the plain formula."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, output_loading_info=True, attn_implementation="eager"
    )
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[key], f"{folder}: {key} {info[key]}"
    with torch.no_grad():
        return model.eval()(torch.from_numpy(tokens)).logits.float().numpy()


def make(folder: Path) -> None:
    """Writes each model to its folder, its tokens and logits to logits.npz in there."""
    for number, (name, (kind, keys)) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        prefix = f"{kind}Text" if kind == "Gemma3" else kind
        config = getattr(transformers, f"{prefix}Config")(**{**SIZES, **keys})
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
        randomize(model)
        model.to(torch.bfloat16).save_pretrained(folder / name)
        tokens = np.random.default_rng(number).integers(0, VOCAB, (2, LENGTH))
        np.savez(folder / name / "logits.npz", tokens=tokens, logits=logits(folder / name, tokens))


def check(folder: Path) -> None:
    """Writes the logits of `<name>_back` of each."""
    for name in MODELS:
        tokens = np.load(folder / name / "logits.npz")["tokens"]
        back = folder / f"{name}_back"
        assert transformers.AutoConfig.from_pretrained(back).dtype == torch.bfloat16, name
        np.save(back / "logits.npy", logits(back, tokens))


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](Path(sys.argv[2]))

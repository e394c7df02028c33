"""Small random models as Hugging Face keeps them, written by its own libraries."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

# No size is that of another, and heads times head_dim is not the width.
LLAMA: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 36,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 270,
    "max_position_embeddings": 640,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": [257, 258],
}
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def random_tensors(config: Mapping[str, Any], *, dtype: str = "float32") -> dict[str, np.ndarray]:
    """The tensors of a model with the layers of Llama."""
    draw = np.random.default_rng(0)
    width, wide, head = (config[key] for key in ("hidden_size", "intermediate_size", "head_dim"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]

    def made(*shape: int, about: float = 0.0) -> np.ndarray:
        spread = 0.1 if about else shape[-1] ** -0.5
        return (about + spread * draw.standard_normal(shape)).astype(DTYPES[dtype])

    tensors = {
        "model.embed_tokens.weight": made(config["vocab_size"], width),
        "model.norm.weight": made(width, about=1.0),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = made(config["vocab_size"], width)
    for layer in range(config["num_hidden_layers"]):
        tensors |= {
            f"model.layers.{layer}.{name}.weight": x
            for name, x in {
                "input_layernorm": made(width, about=1.0),
                "self_attn.q_proj": made(heads * head, width),
                "self_attn.k_proj": made(kv_heads * head, width),
                "self_attn.v_proj": made(kv_heads * head, width),
                "self_attn.o_proj": made(width, heads * head),
                "post_attention_layernorm": made(width, about=1.0),
                "mlp.gate_proj": made(wide, width),
                "mlp.up_proj": made(wide, width),
                "mlp.down_proj": made(width, wide),
            }.items()
        }
    return tensors


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], *, shards: int = 1
) -> Path:
    """Writes a model with a tokenizer of bytes and a chat template."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    names = list(tensors)
    files = {
        f"model-{n + 1:05}-of-{shards:05}.safetensors": names[n::shards] for n in range(shards)
    }
    if shards == 1:
        files = {"model.safetensors": names}
    else:
        places = {name: file for file, held in files.items() for name in held}
        index = {"metadata": {"total_size": 0}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for file, held in files.items():
        safetensors.numpy.save_file({name: tensors[name] for name in held}, folder / file)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Bytes as tokens 0 to 255, then BOS and two that end a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(
        models.BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<bos>", "<eos>", "<turn>"])
    made.save(str(folder / "tokenizer.json"))
    config = {"add_bos_token": False, "bos_token": "<bos>", "eos_token": {"content": "<eos>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))


def read_folder(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Type, shape and bytes of every tensor, by Hugging Face's own reader."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, one in safetensors.deserialize(file.read_bytes()):
            found[name] = one["dtype"], tuple(one["shape"]), bytes(one["data"])
    return found

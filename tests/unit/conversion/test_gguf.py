"""GGUF files that gguf's own writer made: config, weights and tokenizer."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers

from hf_folder import LLAMA, random_tensors, read_folder, write_folder
from maxtext import convert
from maxtext.config.flat import flat_source
from maxtext.config.huggingface import huggingface_source, model_settings
from maxtext.config.huggingface_files import adds_bos
from maxtext.config.trained import read_model
from maxtext.conversion import commands
from maxtext.conversion.errors import ConversionError
from maxtext.conversion.gguf import GGUFModel
from maxtext.conversion.gguf_tokenizer import tokenizer_config, tokenizer_json

# One block of 32 numbers a row at least, as quantization wants.
WIDE = LLAMA | {"hidden_size": 64, "intermediate_size": 96}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
SPECIAL = {"<unk>": 3, "<s>": 3, "</s>": 3}


def theirs(name: str) -> str:
    """llama.cpp's name of a tensor."""
    name = name.removesuffix(".weight")
    if name.startswith("model.layers."):
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{NAMES[rest]}.weight"
    return f"{NAMES[name]}.weight"


def neighbours(x: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows i and i + half of each head next to each other."""
    halves = x.reshape(-1, 2, head_dim // 2, x.shape[1])
    return halves.swapaxes(1, 2).reshape(x.shape)


def byte_pairs() -> dict[str, Any]:
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=list(SPECIAL), show_progress=False
    )
    model.train_from_iterator(["the cat sat on the mat and the hat"] * 3, trainer)
    inner = json.loads(model.to_str())["model"]
    tokens = sorted(inner["vocab"], key=inner["vocab"].get)
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [SPECIAL.get(token, 1) for token in tokens],
        "merges": [" ".join(pair) for pair in inner["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


def write_gguf(file: Path, *, quantized: bool = False, **fields: Any) -> dict[str, np.ndarray]:
    tokenizer = byte_pairs()
    config = WIDE | {"vocab_size": len(tokenizer["tokens"])}
    tensors = random_tensors(config)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(3)
    writer.add_context_length(640)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(6)
    writer.add_head_count_kv(2)
    writer.add_key_length(8)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(tokenizer["model"])
    writer.add_tokenizer_pre(tokenizer["pre"])
    writer.add_token_list(tokenizer["tokens"])
    writer.add_token_types(tokenizer["token_type"])
    writer.add_token_merges(tokenizer["merges"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
    for name, x in tensors.items():
        turned = name.endswith(("q_proj.weight", "k_proj.weight"))
        x = neighbours(x, 8) if turned else x
        if quantized and x.ndim == 2 and "o_proj" not in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(theirs(name), gguf.quants.quantize(x, kind), raw_dtype=kind)
        else:
            writer.add_tensor(theirs(name), x)
    for name, x in fields.items():
        writer.add_tensor(f"{name}.weight", x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_weights_and_tokenizer_come_through(tmp_path: Path) -> None:
    tensors = write_gguf(tmp_path / "model.gguf")
    commands.from_gguf(str(tmp_path / "model.gguf"), tmp_path / "ours")
    commands.to_hf(str(tmp_path / "ours"), tmp_path / "hf")
    assert read_folder(tmp_path / "hf") == {
        name: ("F32", x.shape, x.tobytes()) for name, x in tensors.items()
    }
    model = read_model(huggingface_source(tmp_path / "hf"))
    assert model.normalization_layer_epsilon == 1e-5
    assert model.rope_max_timescale == 500000.0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    generation = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 2
    side = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert (side["chat_template"], side["eos_token"]) == ("{{ messages }}", "</s>")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    text = "the cat <s> sät</s>"
    ids = tokenizer.encode(text).ids
    assert {1, 2} <= set(ids)
    assert len(ids) < len(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_quantized_weights_are_near(tmp_path: Path) -> None:
    tensors = write_gguf(tmp_path / "model.gguf", quantized=True)
    model = GGUFModel(str(tmp_path / "model.gguf"))
    settings = flat_source(model_settings(model.config, model.origin), model.origin)
    for name, one in model.tensors(read_model(settings)).items():
        assert one.shape == tensors[name].shape, name
        np.testing.assert_allclose(one.read(), tensors[name], atol=0.01 * tensors[name].max())


def test_the_factors_of_llama_3_are_recognized(tmp_path: Path) -> None:
    # Of CHECKS-like closed form: head_dim 8, theta 500000, original length 8192, factor 8.
    plain = np.array([1, 0.037606031, 0.0014142136, 5.3182959e-05])
    scaled = np.array([1, 0.037606031, 0.00052484616, 6.6478699e-06])
    write_gguf(tmp_path / "model.gguf", rope_freqs=(plain / scaled).astype(np.float32))
    model = GGUFModel(str(tmp_path / "model.gguf"))
    assert model.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    write_gguf(tmp_path / "other.gguf", rope_freqs=np.full(4, 3, np.float32))
    with pytest.raises(ConversionError, match="of no scaling that is known"):
        GGUFModel(str(tmp_path / "other.gguf"))


@pytest.mark.parametrize(
    ("kind", "layers", "scalar"), [("gemma2", 26, 16), ("gemma2", 46, 8), ("gemma3", 62, 8)]
)
def test_gemma_norms_are_centered_and_its_scale_goes_by_its_size(
    kind: str, layers: int, scalar: int, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", kind)
    writer.add_block_count(layers)
    writer.add_context_length(640)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(8)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(32)
    writer.add_final_logit_softcapping(30.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)
    scale = np.linspace(-0.5, 0.5, 64, dtype=np.float32)
    writer.add_tensor("token_embd.weight", np.ones((300, 64), np.float32))
    writer.add_tensor("output_norm.weight", scale + 1)
    writer.add_tensor("blk.3.post_ffw_norm.weight", scale + 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GGUFModel(str(tmp_path / "model.gguf"))
    model = read_model(flat_source(model_settings(found.config, found.origin), found.origin))
    assert (model.sliding_window_size, model.final_logits_soft_cap) == (32, 30.0)
    assert (model.rope_type, model.rope_linear_scaling_factor) == ("linear", 8.0)
    assert model.query_pre_attn_scalar == (0.0 if scalar == 16 else scalar)
    assert model.logits_via_embedding
    tensors = found.tensors(model)
    for name in ("model.norm.weight", "model.layers.3.post_feedforward_layernorm.weight"):
        np.testing.assert_allclose(tensors[name].read(), scale, atol=1e-7)
    assert np.all(tensors["model.embed_tokens.weight"].read() == 1)


def test_a_cut_short_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_gguf(file)
    content = file.read_bytes()
    for size in (30, 5000, len(content) - 1000):
        file.write_bytes(content[:size])
        with pytest.raises(ConversionError, match=r"model.gguf is cut short"):
            commands.from_gguf(str(file), tmp_path / "out")
        assert not (tmp_path / "out").exists()


DAMAGE = {
    b"token_type": (b"token_typo", "there is no 'token_type'"),
    b"ggml.merges": (b"ggml.merger", "there is no 'merges'"),
    b"ggml.tokens": (b"ggml.token_", "there is no 'tokens'"),
    b"{{ messages }}": (b"{{ messages }\xf0", "can't decode byte 0xf0"),
}


def test_a_damaged_file_is_one_error_wherever_it_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "model.gguf", tmp_path / "out"
    write_gguf(file)
    content = file.read_bytes()
    for text, (other, says) in DAMAGE.items():
        file.write_bytes(content.replace(text, other))
        assert convert.main(["from_gguf", str(file), str(out)]) == 2
        assert says in capsys.readouterr().err
    names = re.findall(rb"(?:general|llama|tokenizer)\.[a-z0-9_.]+", content)
    assert len(names) > 15
    for name in names:
        # The last letter of the name, or the value, which comes after its type of four bytes.
        end = content.index(name) + len(name)
        for at, byte in ((end - 1, b"_"), (end + 4, b"\xf0")):
            file.write_bytes(content[:at] + byte + content[at + 1 :])
            code = convert.main(["from_gguf", str(file), str(out)])
            err = capsys.readouterr().err
            assert (code == 0) == out.exists()
            assert code == 0 or (err.count("error: "), err[:7]) == (1, "error: "), name
            shutil.rmtree(out, ignore_errors=True)
    assert list(tmp_path.iterdir()) == [file]


def test_a_sentencepiece_tokenizer_joins_the_better_whole_first() -> None:
    scores = {"<unk>": 0.0, "<s>": 0.0, "▁": -9.0, "a": -9.5, "b": -9.6, "ab": -1.0, "ba": -2.0}
    scores |= {f"<0x{byte:02X}>": 0.0 for byte in range(256)} | {"▁ab": -3.0}
    metadata = {
        "model": "llama",
        "tokens": list(scores),
        "scores": list(scores.values()),
        "token_type": [2, 3, *[1] * 5, *[6] * 256, 1],
        "bos_token_id": 1,
        "unknown_token_id": 0,
    }
    model = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(metadata)))
    assert model.encode("bab").tokens == ["<s>", "▁", "b", "ab"]
    assert model.encode("ab", add_special_tokens=False).tokens == ["▁ab"]
    ids = model.encode("aé b", add_special_tokens=False).ids
    assert model.decode(ids) == "aé b"


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_texts_come_back_whatever_splits_them(pre: str) -> None:
    metadata = byte_pairs() | {"pre": pre}
    model = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(metadata)))
    text = "In 2025 they'd say:\n\n  the cät 12345!"
    assert model.decode(model.encode(text, add_special_tokens=False).ids) == text
    digits = {"gpt-2": "12345", "smollm": "1", "llama-bpe": "123", "qwen2": "1"}[pre]
    words = [word for word, _ in model.pre_tokenizer.pre_tokenize_str("12345")]
    assert words[0] == digits
    assert tokenizer_config(metadata)["add_bos_token"] is (pre == "llama-bpe")


@pytest.mark.parametrize("change", [{"pre": "mpt"}, {"model": "bert"}])
def test_an_unknown_tokenizer_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(ConversionError, match="are not read"):
        tokenizer_json(byte_pairs() | change)


def test_whether_bos_is_added_is_kept(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf")
    (tmp_path / "side").mkdir()
    GGUFModel(str(tmp_path / "model.gguf")).write_side_files(tmp_path / "side")
    assert adds_bos(tmp_path / "side") is False
    folder = write_folder(tmp_path / "hf", LLAMA, random_tensors(LLAMA))
    assert adds_bos(folder) is False

"""Hugging Face's tensors to ours and back, bit for bit, and what does not fit is named."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from hf_folder import LLAMA, random_tensors, read_folder, write_folder
from maxtext.checkpoint.pieces import Leaf
from maxtext.config.huggingface import huggingface_source
from maxtext.config.schema import ModelConfig
from maxtext.config.trained import read_model
from maxtext.conversion import commands
from maxtext.conversion.errors import ConversionError
from maxtext.conversion.huggingface import HuggingFaceWeights, places
from maxtext.conversion.loading import load_weights
from maxtext.conversion.safetensors import open_folder
from maxtext.conversion.safetensors_writer import FolderWriter
from maxtext.conversion.tables import TABLES
from maxtext.models.decoder import model_params
from maxtext.models.registry import FAMILIES, architecture
from maxtext.parallel.layout import Layout
from maxtext.parallel.params import abstract, named_leaves

TIED = LLAMA | {"tie_word_embeddings": True}


def weights_of(folder: Path) -> HuggingFaceWeights:
    model = read_model(huggingface_source(folder))
    return HuggingFaceWeights(model, open_folder(folder), where="it")


def test_every_family_has_its_table() -> None:
    assert set(TABLES) == set(FAMILIES)


@pytest.mark.parametrize(
    ("config", "dtype", "shards"),
    [(LLAMA, "bfloat16", 3), (TIED, "float32", 1), (TIED, "float16", 1)],
)
def test_there_and_back_is_bit_identical(
    config: dict[str, Any], dtype: str, shards: int, tmp_path: Path
) -> None:
    tensors = random_tensors(config, dtype=dtype)
    write_folder(tmp_path / "before", config, tensors, shards=shards)
    commands.from_hf(str(tmp_path / "before"), tmp_path / "ours")
    commands.to_hf(str(tmp_path / "ours"), tmp_path / "after")
    assert read_folder(tmp_path / "after") == read_folder(tmp_path / "before")
    written = json.loads((tmp_path / "after" / "config.json").read_text())
    assert {key: written[key] for key in config} == config
    assert written["torch_dtype"] == dtype
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copied = (tmp_path / "after" / name).read_bytes()
        assert copied == (tmp_path / "before" / name).read_bytes()


def test_weights_lie_where_the_table_says(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    weights = weights_of(write_folder(tmp_path / "hf", LLAMA, tensors))
    query = np.concatenate(list(weights.pieces("decoder/layers/self_attention/query/kernel")))
    out = np.concatenate(list(weights.pieces("decoder/layers/self_attention/out/kernel")))
    # Channel 3 of head 4, as it is made of channel 5 of the residual stream, and as it goes back.
    theirs = tensors["model.layers.1.self_attn.q_proj.weight"]
    assert query[1, 5, 4, 3] == theirs[4 * 8 + 3, 5]
    assert out[1, 4, 3, 5] == tensors["model.layers.1.self_attn.o_proj.weight"][5, 4 * 8 + 3]
    head = np.concatenate(list(weights.pieces("decoder/logits_dense/kernel")))
    assert np.array_equal(head, tensors["lm_head.weight"].T)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model.norm.weight": None}, r"1 of 30 tensors\n  model.norm.weight is missing.*\[36\]"),
        (
            {"model.layers.2.mlp.up_proj.weight": np.zeros((57, 36), np.float32)},
            r"model.layers.2.mlp.up_proj.weight is \[57, 36\], it should be \[56, 36\]",
        ),
        (
            {"model.layers.3.mlp.up_proj.weight": np.zeros((56, 36), np.float32)},
            r"model.layers.3.mlp.up_proj.weight is in no such model",
        ),
        (
            {"model.layers.2.mlp.up_proj.weight": np.zeros((56, 36), np.float16)},
            r"model.layers.2.mlp.up_proj.weight is float16, that of layer 0 is float32",
        ),
        ({"model.norm.weight": np.zeros(36, np.int8)}, "type I8 are not read; only F32, F16, BF16"),
        (dict.fromkeys(random_tensors(LLAMA)), r"30 of 30.*\n  and 20 more$"),
    ],
)
def test_what_does_not_fit_is_named(
    change: dict[str, np.ndarray | None], text: str, tmp_path: Path
) -> None:
    tensors = {k: x for k, x in (random_tensors(LLAMA) | change).items() if x is not None}
    folder = write_folder(tmp_path / "hf", LLAMA, tensors)
    with pytest.raises(ConversionError, match=f"(?s){text}"):
        weights_of(folder)


def test_a_copy_of_a_tied_head_and_old_constants_are_passed_over(tmp_path: Path) -> None:
    tensors = random_tensors(TIED)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    weights = weights_of(write_folder(tmp_path / "hf", TIED, tensors))
    assert "decoder/logits_dense/kernel" not in weights.leaves
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    with pytest.raises(ConversionError, match=r"lm_head\.weight is in no such model"):
        weights_of(write_folder(tmp_path / "other", TIED, tensors))


def target(model: ModelConfig, dtype: str) -> Any:
    mesh = jax.make_mesh((2, 4), ("layers", "embed"), (AxisType.Auto,) * 2)
    rules = dict.fromkeys(("mlp", "heads", "kv_heads", "kv", "vocab", "norm"), ())
    layout = Layout(mesh, rules | {"layers": (), "embed": ("embed",)})
    return abstract(model_params(architecture(model, weight_dtype=dtype)), layout)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_is_read_into_shardings(dtype: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", LLAMA, random_tensors(LLAMA, dtype="bfloat16"))
    model = read_model(huggingface_source(folder))
    wanted = target(model, dtype)
    loaded = named_leaves(load_weights(folder, wanted, model=model))
    commands.from_hf(str(folder), tmp_path / "ours")
    converted = named_leaves(load_weights(tmp_path / "ours", wanted, model=model))
    weights = weights_of(folder)
    assert set(loaded) == set(places(model))
    for name, leaf in named_leaves(wanted).items():
        want = np.concatenate(list(weights.pieces(name))).astype(leaf.dtype)
        for x in (loaded[name], converted[name]):
            assert (x.dtype, x.sharding) == (leaf.dtype, leaf.sharding), name
            assert np.asarray(x).tobytes() == want.tobytes(), name


def test_weights_are_not_rounded_in_silence(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", LLAMA, random_tensors(LLAMA))
    model = read_model(huggingface_source(folder))
    with pytest.raises(ConversionError, match="weight_dtype=float32 takes it as it is"):
        load_weights(folder, target(model, "bfloat16"), model=model)


def test_a_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", LLAMA, random_tensors(LLAMA))
    model = read_model(huggingface_source(folder)).model_copy(update={"mlp_dim": 64})
    with pytest.raises(ConversionError, match=r"gate_proj.weight is \[56, 36\], it should be \[64"):
        load_weights(folder, target(model, "float32"), model=model)


def test_large_models_are_several_files_with_an_index(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    plan = {name: Leaf(x.shape, x.dtype) for name, x in tensors.items()}
    writer = FolderWriter(tmp_path, plan, shard_bytes=30_000)
    for name, x in tensors.items():
        writer.write(name, x)
    writer.finish()
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(files) > 3
    assert {file.name for file in files} == set(index["weight_map"].values())
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in tensors.values())
    # Only the embedding and the head are larger than a file may be.
    assert sorted(file.stat().st_size > 33_000 for file in files)[-2:] == [True, True]
    assert not any(sorted(file.stat().st_size > 33_000 for file in files)[:-2])
    assert read_folder(tmp_path) == {
        name: ("F32", x.shape, x.tobytes()) for name, x in tensors.items()
    }
    assert {name: one.read().tobytes() for name, one in open_folder(tmp_path).items()} == {
        name: x.tobytes() for name, x in tensors.items()
    }

"""Checkpoints of upstream MaxText, as its own trees lie on disk."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

from hf_folder import LLAMA, random_tensors, write_folder
from maxtext import convert
from maxtext.checkpoint.pieces import WeightsReader
from maxtext.config.huggingface import huggingface_source
from maxtext.config.load import load
from maxtext.config.schema import ModelConfig
from maxtext.config.trained import read_model
from maxtext.conversion.errors import ConversionError
from maxtext.conversion.huggingface import HuggingFaceWeights
from maxtext.conversion.safetensors import open_folder
from maxtext.conversion.upstream import UpstreamWeights

SCALED = LLAMA | {
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
}


def interleaved(x: np.ndarray) -> np.ndarray:
    """Channels i and i + half next to each other."""
    half = x.shape[-1] // 2
    return np.stack([x[..., :half], x[..., half:]], axis=-1).reshape(x.shape)


def upstream_tree(model: ModelConfig, ours: dict[str, np.ndarray], *, scan: bool) -> dict[str, Any]:
    """Our weights as upstream has them: Llama's attention scale in the query, RoPE by neighbours
    where it is scaled, layers on the second dim or apart."""
    tree: dict[str, Any] = {}
    for name, x in ours.items():
        if model.rope_type == "llama3.1" and name.endswith(("query/kernel", "key/kernel")):
            x = interleaved(x)
        if name.endswith("query/kernel") and model.decoder_block == "llama2":
            x = (x / math.sqrt(model.head_dim)).astype(x.dtype)
        if "/layers/" not in name:
            placed = {name: x}
        elif scan:
            placed = {name: np.moveaxis(x, 0, 1)}
        else:
            placed = {name.replace("/layers/", f"/layers_{i}/"): row for i, row in enumerate(x)}
        for path, array in placed.items():
            node = tree
            *folders, last = path.split("/")
            for folder in folders:
                node = node.setdefault(folder, {})
            node[last] = array
    return {"step": np.int32(3), "params": {"params": tree}}


def save(folder: Path, tree: dict[str, Any], **how: bool) -> None:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**how)) as checkpointer:
        checkpointer.save(folder.absolute() / "7" / "items", args=ocp.args.PyTreeSave(tree))


@pytest.mark.parametrize(
    ("config", "scan", "how"),
    [
        (LLAMA, True, {"use_ocdbt": True, "use_zarr3": True}),
        (SCALED, True, {"use_ocdbt": True, "use_zarr3": False}),
        (SCALED, False, {"use_ocdbt": False}),
    ],
    ids=["scanned", "scanned, scaled", "unscanned, scaled"],
)
def test_upstream_weights_are_ours(
    config: dict[str, Any], scan: bool, how: dict[str, bool], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "hf", config, random_tensors(config))
    model = read_model(huggingface_source(folder))
    theirs = HuggingFaceWeights(model, open_folder(folder), where="it")
    ours = {name: np.concatenate(list(theirs.pieces(name))) for name in theirs.leaves}
    save(tmp_path / "upstream", upstream_tree(model, ours, scan=scan), **how)
    weights = UpstreamWeights(tmp_path / "upstream", model)
    assert weights.leaves == theirs.leaves
    for name, want in ours.items():
        got = np.concatenate(list(weights.pieces(name)))
        # The scale of the query is no power of two.
        np.testing.assert_allclose(got, want, rtol=2e-7 if "query/" in name else 0, atol=0)


def test_what_is_not_of_the_model_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", LLAMA, random_tensors(LLAMA))
    model = read_model(huggingface_source(folder))
    theirs = HuggingFaceWeights(model, open_folder(folder), where="it")
    ours = {name: np.concatenate(list(theirs.pieces(name))) for name in theirs.leaves}
    ours["decoder/layers/mlp/extra/kernel"] = ours.pop("decoder/layers/mlp/wi_1/kernel")
    ours["decoder/decoder_norm/scale"] = np.ones(35, np.float32)
    save(tmp_path / "upstream", upstream_tree(model, ours, scan=True))
    with pytest.raises(ConversionError) as caught:
        UpstreamWeights(tmp_path / "upstream", model)
    for text in (
        "params/params/decoder/layers/mlp/wi_1/kernel is missing, it should be [36, 3, 56]",
        "params/params/decoder/layers/mlp/extra/kernel is in no such model",
        "params/params/decoder/decoder_norm/scale is [35], it should be [36]",
    ):
        assert text in str(caught.value)


def test_a_family_whose_layout_is_not_certain_is_refused(tmp_path: Path) -> None:
    model = load(["model_name=gemma2-2b"], {}).config.model
    with pytest.raises(ConversionError, match=r"decoder_block=gemma2 are not read; .*: from_hf"):
        UpstreamWeights(tmp_path, model)


@pytest.mark.parametrize(
    ("parts", "fused", "key"),
    [
        (("query", "key", "value"), "self_attention/qkv_proj", "fused_qkv"),
        (("wi_0", "wi_1"), "mlp/wi", "fused_mlp"),
    ],
)
def test_fused_kernels_of_upstream_are_refused(
    parts: tuple[str, ...], fused: str, key: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "hf", LLAMA, random_tensors(LLAMA))
    model = read_model(huggingface_source(folder))
    theirs = HuggingFaceWeights(model, open_folder(folder), where="it")
    ours = {name: np.concatenate(list(theirs.pieces(name))) for name in theirs.leaves}
    kept = {name: x for name, x in ours.items() if name.split("/")[-2] not in parts}
    kept[f"decoder/layers/{fused}/kernel"] = np.zeros((3, 36, 3, 6, 8), np.float32)
    save(tmp_path / "upstream", upstream_tree(model, kept, scan=True))
    with pytest.raises(ConversionError, match=rf"{fused}/kernel.*{key}=true.*{key}=false"):
        UpstreamWeights(tmp_path / "upstream", model)


def test_the_model_is_given_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_folder(tmp_path / "hf", LLAMA, random_tensors(LLAMA))
    model = read_model(huggingface_source(folder))
    theirs = HuggingFaceWeights(model, open_folder(folder), where="it")
    ours = {name: np.concatenate(list(theirs.pieces(name))) for name in theirs.leaves}
    save(tmp_path / "upstream", upstream_tree(model, ours, scan=True))
    flat = model.model_dump(mode="json", by_alias=True)
    keys = [
        f"{key}={','.join(value) if isinstance(value, list) else value}"
        for key, value in flat.items()
    ]
    words = ["from_maxtext", "upstream", "out", *keys, "max_target_length=32"]
    tokenizer = ["tokenizer_type=huggingface", "tokenizer_path=hf", "add_bos=false"]
    monkeypatch.setenv("M_ENABLE_TENSORBOARD", "false")
    quiet = ["enable_checkpointing=false"]
    assert convert.main([*words, *tokenizer, *quiet]) == 0, capsys.readouterr().err
    reader = WeightsReader(tmp_path / "out", "checkpoint")
    assert np.concatenate(list(reader.pieces("token_embedder/embedding"))).tobytes() == (
        ours["token_embedder/embedding"].tobytes()
    )
    assert (tmp_path / "out" / "0" / "huggingface" / "tokenizer.json").is_file()
    assert reader.config["base_emb_dim"] == 36
    assert convert.main(["from_maxtext", "upstream", "other", "model_name=qwen3-0.6b"]) == 2
    assert "upstream is not of this model" in capsys.readouterr().err

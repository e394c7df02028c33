"""A conversion writes all or nothing."""

import contextlib
import json
import resource
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import tokenizers

from hf_folder import LLAMA, random_tensors, write_folder
from maxtext import convert
from maxtext.checkpoint.pieces import WeightsWriter
from maxtext.config.huggingface_files import adds_bos
from maxtext.conversion import commands
from maxtext.conversion.byte_tokenizer import write_byte_tokenizer
from maxtext.conversion.errors import ConversionError
from maxtext.conversion.safetensors_writer import FolderWriter
from maxtext.conversion.side_files import token_ids
from maxtext.data.tokenizer import ByteTokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "hf"
    return write_folder(folder, LLAMA, random_tensors(LLAMA))


@pytest.fixture(scope="module")
def checkpoint(model: Path) -> Path:
    out = model.parent / "ours"
    commands.from_hf(str(model), out)
    return out


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As on a full disk, every file ends there."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_leaves_nothing_behind(
    model: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb, source in (("from_hf", model), ("to_hf", checkpoint)):
        with largest_file(20_000):
            code = convert.main([verb, str(source), str(tmp_path / "new" / "out")])
        assert code == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.endswith("File too large\n") or "(File too large)" in error
        assert error.count("\n") == 1
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("writer", [WeightsWriter, FolderWriter])
def test_ctrl_c_leaves_nothing_behind(
    writer: type,
    model: Path,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(*_: object) -> None:
        assert any(tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "finish", interrupt)
    words = ["from_hf", str(model)] if writer is WeightsWriter else ["to_hf", str(checkpoint)]
    assert convert.main([*words, str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_what_another_program_wrote_meanwhile_is_not_written_over(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "theirs").write_text("")
    with pytest.raises(ConversionError, match="out: Directory not empty"):
        commands.from_hf(str(model), tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "theirs"]


def test_a_file_that_shrinks_is_cut_short(model: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", LLAMA, random_tensors(LLAMA))
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConversionError, match=r"model.safetensors is cut short: [\d,]+ of [\d,]+"):
        commands.from_hf(str(folder), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_config_of_a_run_that_went_on_from_converted_weights(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Token ids come with the tokenizer, wherever the run names it."""
    stored = json.loads((checkpoint / "0" / "config" / "metadata").read_text())
    side = checkpoint / "0" / "huggingface"
    assert stored["tokenizer_type"] == "huggingface"
    (tmp_path / "tokenizer").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "tokenizer" / name).write_bytes((side / name).read_bytes())
    assert token_ids(side) == {
        "bos_token_id": 256,
        "eos_token_id": [257, 258],
        "pad_token_id": None,
    }
    named = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": None}
    assert token_ids(tmp_path / "tokenizer") == named
    # Older models name them there alone.
    (tmp_path / "tokenizer" / "tokenizer_config.json").rename(
        tmp_path / "tokenizer" / "special_tokens_map.json"
    )
    assert token_ids(tmp_path / "tokenizer") == named


def test_the_byte_tokenizer_has_the_same_ids_there(tmp_path: Path) -> None:
    for add_bos in (True, False):
        write_byte_tokenizer(tmp_path, add_bos=add_bos)
        theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        ours = ByteTokenizer()
        text = "".join(map(chr, range(0x3000))) + " \r\n  \U0001f600"
        before = [ours.bos_id] * add_bos
        assert theirs.encode(text).ids == [*before, *ours.encode(text)]
        assert theirs.decode(ours.encode(text)) == text
        ids = {"bos_token_id": 254, "eos_token_id": 255, "pad_token_id": 253}
        assert token_ids(tmp_path) == ids
        assert adds_bos(tmp_path) is add_bos


def test_a_name_on_the_hub_is_downloaded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def download(name: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append(name)
        assert "consolidated*" in ignore_patterns
        assert "*.safetensors" in allow_patterns
        if name == "some/gone":
            raise OSError("not found")
        return str(model)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    commands.from_hf("some/model", tmp_path / "out")
    assert (tmp_path / "out" / "0").is_dir()
    with pytest.raises(ConversionError, match="the hub gives no such model"):
        commands.from_hf("some/gone", tmp_path / "other")
    assert asked == ["some/model", "some/gone"]
    assert np.all([path.name == "out" for path in tmp_path.iterdir()])

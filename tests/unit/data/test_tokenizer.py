import json
import pickle
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors, trainers

from maxtext.data.documents import Tokenize
from maxtext.data.tokenizer import ByteTokenizer, load_tokenizer

TEXT = "to be or not to be: that is the question"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small BPE whose own post-processor adds BOS and EOS, and that truncates and pads."""
    model = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<unk>", "<s>", "</s>"]
    model.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=60, special_tokens=special, show_progress=False)
    )
    model.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    model.enable_truncation(4)
    model.enable_padding(length=4)
    model.save(str(tmp_path / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    return tmp_path


def load(make_config, path: Path, **keys):
    config = make_config(tokenizer_type="huggingface", tokenizer_path=str(path), **keys)
    return load_tokenizer(config, vocab_size=keys.pop("vocab_size", 256))


@pytest.mark.parametrize("text", ["", "plain", "naïve — 漢字 🙂"])
def test_bytes_come_back_as_the_same_text(text):
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([254, *tokenizer.encode(text), 255, 253]) == text
    assert tokenizer.encode_many([text])[0].tolist() == tokenizer.encode(text)


def test_bytes_that_are_no_text_are_replaced():
    assert ByteTokenizer().decode([0x61, 0xC3, 0x62]) == "a�b"


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("add_eos", [False, True])
@pytest.mark.parametrize("kind", ["byte", "huggingface"])
def test_bos_and_eos_stand_exactly_where_asked(make_config, folder, kind, add_bos, add_eos):
    tokenizer = load(make_config, folder) if kind == "huggingface" else ByteTokenizer()
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    texts = [TEXT, "", "to"]
    tokenize = Tokenize(
        tokenizer=tokenizer,
        bos_id=bos if add_bos else None,
        eos_id=eos if add_eos else None,
    )
    got = tokenize(texts)
    want = [[bos] * add_bos + tokenizer.encode(text) + [eos] * add_eos for text in texts]
    assert got["lengths"].tolist() == [len(one) for one in want]
    assert got["tokens"].tolist() == [token for one in want for token in one]
    assert got["tokens"].tolist().count(bos) == 3 * add_bos
    assert got["tokens"].tolist().count(eos) == 3 * add_eos


def test_truncation_and_padding_of_the_file_are_turned_off(make_config, folder):
    ids = load(make_config, folder).encode(TEXT)
    assert len(ids) > 4
    assert load(make_config, folder).encode("to") != ids


def test_special_tokens_are_found_whether_text_or_object(make_config, folder):
    tokenizer = load(make_config, folder)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, None)
    (folder / "tokenizer_config.json").rename(folder / "special_tokens_map.json")
    assert load(make_config, folder / "tokenizer.json").eos_id == 2


def test_a_tokenizer_survives_the_way_to_a_worker(make_config, folder):
    tokenizer = load(make_config, folder)
    assert pickle.loads(pickle.dumps(tokenizer)).encode(TEXT) == tokenizer.encode(TEXT)


def test_a_tokenizer_without_bos_is_refused_only_where_bos_is_asked(make_config, folder):
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"add_bos=true, but tokenizer .* names no bos_token"):
        load(make_config, folder)
    with pytest.raises(ValueError, match=r"add_eos=true, but tokenizer .* names no eos_token"):
        load(make_config, folder, add_bos=False)
    assert load(make_config, folder, add_bos=False, add_eos=False).bos_id is None


def test_more_tokens_than_the_model_has_are_refused(make_config):
    with pytest.raises(ValueError, match=r"tokenizer byte .* up to 255, but vocab_size=255"):
        load_tokenizer(make_config(), vocab_size=255)


@pytest.mark.parametrize("path", ["", "missing"])
def test_a_folder_without_a_tokenizer_is_named(make_config, path):
    with pytest.raises(ValueError, match=f"tokenizer_path='{path}': no tokenizer.json"):
        load(make_config, path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_file_is_named(make_config, folder, name):
    (folder / name).write_text("{")
    with pytest.raises(ValueError, match=f"{name}:? is no"):
        load(make_config, folder)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[1]", "tokenizer_config.json: is no JSON object"),
        ('{"bos_token": 5}', "tokenizer_config.json: bos_token must be text, not int"),
        ('{"eos_token": ["x"]}', "tokenizer_config.json: eos_token must be text, not list"),
        ('{"bos_token": "<gone>"}', "names no bos_token that it has"),
    ],
)
def test_special_tokens_that_are_none_are_named(make_config, folder, content, text):
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(ValueError, match=text):
        load(make_config, folder)


def test_a_tokenizer_without_tokens_is_refused(make_config, tmp_path):
    tokenizers.Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"tokenizer.json is no tokenizer: it has no tokens"):
        load(make_config, tmp_path)


def test_a_text_that_a_tokenizer_has_no_tokens_for_is_an_error_that_names_it(make_config, tmp_path):
    made = tokenizers.Tokenizer(models.WordLevel({"hello": 1}, unk_token="<unk>"))
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(make_config, tmp_path, add_bos=False, add_eos=False)
    with pytest.raises(ValueError, match=r"tokenizer .* cannot encode a text: "):
        tokenizer.encode("other")
    with pytest.raises(ValueError, match=r"tokenizer .* cannot encode a text: "):
        tokenizer.encode_many(["hello", "other"])

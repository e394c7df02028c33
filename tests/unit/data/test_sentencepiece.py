"""SentencePiece models, held against the package's own encoding."""

import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from maxtext.data.batch import Shard
from maxtext.data.chat import encode_chat
from maxtext.data.iterators import make_train_iterator
from maxtext.data.records import Chat
from maxtext.data.tokenizer import load_tokenizer

PLAYS = Path(__file__).parents[3] / "data" / "shakespeare-valid.jsonl"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    lines = json.loads(PLAYS.read_text().splitlines()[0])["text"].split("\n")
    return [*lines[:300], "naïve — 漢字 🙂", "", "  two  blanks "]


@pytest.fixture(scope="module")
def content(texts) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts[:-3]),
        model_writer=model,
        vocab_size=360,
        model_type="bpe",
        byte_fallback=True,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture
def load(content, tmp_path, make_config):
    def load(content=content, **keys):
        (tmp_path / "tokenizer.model").write_bytes(content)
        config = make_config(tokenizer_type="sentencepiece", tokenizer_path=str(tmp_path), **keys)
        return load_tokenizer(config, vocab_size=360)

    return load


def test_ids_and_texts_are_those_of_the_package(load, content, texts):
    want = sentencepiece.SentencePieceProcessor(model_proto=content)
    tokenizer = load()
    encoded = tokenizer.encode_many(texts)
    for text, ids in zip(texts, encoded, strict=True):
        assert ids.tolist() == tokenizer.encode(text) == want.encode(text)
        assert tokenizer.decode(ids) == want.decode(want.encode(text))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, None)
    assert tokenizer.vocab_size == want.get_piece_size() == 360
    assert pickle.loads(pickle.dumps(tokenizer)).encode(texts[0]) == encoded[0].tolist()


def test_spans_are_the_characters_of_each_id(load, texts):
    tokenizer = load()
    for text in texts:
        ids, spans = tokenizer.encode_spans(text)
        assert ids.tolist() == tokenizer.encode(text)
        # A span before which a text is cut leaves what is before it as it is.
        assert (np.diff(spans[:, 0]) >= 0).all()
        assert (spans[:, 1] > spans[:, 0]).all()
    ids, spans = tokenizer.encode_spans("a 漢!")
    assert [tuple(span) for span in spans[-4:]] == [(2, 3), (2, 3), (2, 3), (3, 4)]


def test_completions_count_alone(load):
    tokenizer = load()
    ids = encode_chat(Chat("speak, sir: I will", ((11, 18),), templated=False), tokenizer)
    assert tokenizer.decode(ids[ids >= 0]) == "I will"
    assert tokenizer.decode(~ids[ids < 0]) == "speak, sir:"


def test_documents_begin_and_end_with_the_models_marks(load, make_config, tmp_path, write_jsonl):
    tokenizer = load()
    config = make_config(
        dataset_type="grain",
        grain_train_files=str(write_jsonl(["to be"])),
        tokenizer_type="sentencepiece",
        tokenizer_path=str(tmp_path / "tokenizer.model"),
        num_epoch=1,
    )
    (batch,) = make_train_iterator(config, rows=1, shard=Shard(0, 1), vocab_size=360)
    ids = [1, *tokenizer.encode("to be"), 2]
    pairs = int(batch.counts.sum())
    assert [batch.inputs[0, 0], *batch.targets[0, :pairs]] == ids


@pytest.mark.parametrize("damage", ["empty", "cut", "no model"])
def test_a_damaged_model_is_named(load, content, damage):
    bad = {"empty": b"", "cut": content[: len(content) // 2], "no model": b'{"a": 1}'}[damage]
    with pytest.raises(ValueError, match=r"tokenizer\.model is no SentencePiece model"):
        load(bad)


def test_a_folder_without_a_model_is_named(make_config, tmp_path):
    config = make_config(tokenizer_type="sentencepiece", tokenizer_path=str(tmp_path))
    with pytest.raises(ValueError, match=r"no tokenizer\.model there"):
        load_tokenizer(config, vocab_size=360)

"""Files, chats and tokenizers that are damaged or something else: one clear error each."""

import gzip
import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

GOOD = '{"text": "a good line"}\n'
BAD_DATA = {
    "no JSON": (GOOD + "{broken\n", ("bad.jsonl:2",)),
    "another column": ('{"words": "a"}\n', ("bad.jsonl:1", "text", "words")),
    "a number for a text": ('{"text": 5}\n', ("bad.jsonl:1", "'text' is int")),
    "nothing": ("", ("bad.jsonl:1", "empty")),
    "no JSON but brackets": (GOOD + "[" * 100_000 + "\n", ("bad.jsonl:2", "nested too deeply")),
    "a number of 5000 digits": ('{"a": %s}\n' % ("9" * 5000), ("bad.jsonl:1", "too many digits")),
    "an object of nothing": ("{}\n", ("bad.jsonl:1", "there are none", "train_data_columns")),
    "a list": ("[1]\n", ("bad.jsonl:1", "must be a JSON object, not list")),
    "a line of spaces": (GOOD + "  \n", ("bad.jsonl:2", "invalid JSON")),
    "only empty lines": ("\n\n", ("bad.jsonl:1", "no lines but empty ones")),
    "a line cut short": (GOOD + GOOD[:15], ("bad.jsonl:2", "may be cut off")),
    "half a surrogate pair": ('{"text": "\\ud800"}\n', ("bad.jsonl:1", "surrogate")),
    "a zero byte": (GOOD.replace("good", "\0"), ("bad.jsonl:1", "invalid JSON")),
    "UTF-16": (GOOD.encode("utf-16"), ("bad.jsonl:1", "convert the file to UTF-8")),
    "Latin-1": (GOOD.replace("good", "gütig").encode("latin-1"), ("bad.jsonl:1", "0xfc")),
    "a compressed file by another name": (gzip.compress(GOOD.encode()), ("bad.jsonl:1", "unpack")),
    "a torn character": (GOOD.encode() + b'{"text": "\xe2\x82"}\n', ("bad.jsonl:2", "UTF-8")),
}


@pytest.mark.parametrize(("content", "says"), BAD_DATA.values(), ids=BAD_DATA)
def test_bad_data_is_one_clear_error(refused, runs, content, says) -> None:
    path = runs.folder / "data" / "bad.jsonl"
    path.parent.mkdir()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    marks = {"add_bos": False, "add_eos": False}
    err = refused(dataset_type="grain", grain_train_files=path, **marks)
    assert [text for text in says if text not in err] == []


def cut_parquet(path):
    pq.write_table(pa.table({"text": ["a" * 9] * 999}), path)
    path.write_bytes(path.read_bytes()[:-50])


def hurt_parquet(path):
    pq.write_table(pa.table({"text": [str(n) * 9 for n in range(999)]}), path)
    content = bytearray(path.read_bytes())
    content[100:2000] = bytes(1900)
    path.write_bytes(content)


def arrayrecord(path, damage):
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for number in range(999):
        writer.write(b"%d a record" % number * 9)
    writer.close()
    path.write_bytes(damage(bytearray(path.read_bytes())))


def zeros(content):
    content[70:5000] = bytes(4930)
    return content


BAD_FILES = {
    "parquet cut short": ("a.parquet", cut_parquet, ("a.parquet:row 1", "cut off")),
    "parquet with zeros": ("a.parquet", hurt_parquet, ("a.parquet:row 1: damaged",)),
    "arrayrecord cut short": (
        "a.arrayrecord",
        lambda path: arrayrecord(path, lambda content: content[:-9000]),
        ("a.arrayrecord:record 1", "cut off"),
    ),
    "arrayrecord with zeros": (
        "a.arrayrecord",
        lambda path: arrayrecord(path, zeros),
        ("a.arrayrecord:record 1: damaged",),
    ),
    "text in Latin-1": (
        "a.txt",
        lambda path: path.write_bytes("eins\nzwei\nfünf".encode("latin-1")),
        ("a.txt:3: not UTF-8 (byte 0xfc)",),
    ),
    "text in UTF-16": (
        "a.txt",
        lambda path: path.write_text("a", "utf-16"),
        ("a.txt:1: not UTF-8",),
    ),
}


@pytest.mark.parametrize(("name", "write", "says"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_damaged_file_is_one_clear_error(refused, tmp_path_factory, name, write, says) -> None:
    path = tmp_path_factory.mktemp("data") / name
    write(path)
    err = refused(dataset_type="grain", grain_train_files=path)
    assert [text for text in says if text not in err] == []


TALK = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}\n'
TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
BAD_CHATS = {
    "text for messages": (TALK + '{"messages": "hi"}\n', TEMPLATE, ("a.jsonl:2", "not str")),
    "a message without content": (
        TALK.replace("content", "text"),
        TEMPLATE,
        ("a.jsonl:1: message 1 of 'messages': 'content' must be text, and is missing",),
    ),
    "no messages": (TALK + '{"messages": []}', TEMPLATE, ("a.jsonl:2", "has no messages")),
    "no template": (TALK, None, ("a.jsonl:1: messages need a chat template", "chat_template=FILE")),
    "no Jinja": (TALK, "{% for m in %}", ("t.jinja: the chat template is no Jinja template",)),
    "a template that refuses": (
        TALK,
        "{{ raise_exception('no users') }}",
        ("a.jsonl:1: the chat template", "t.jinja says: no users"),
    ),
    "a template of no answers": (TALK, "hello", ("a.jsonl:1", "{% generation %}")),
}


@pytest.mark.parametrize(("content", "template", "says"), BAD_CHATS.values(), ids=BAD_CHATS)
def test_a_bad_chat_is_one_clear_error(refused, tmp_path_factory, content, template, says) -> None:
    folder = tmp_path_factory.mktemp("chats")
    (folder / "a.jsonl").write_text(content)
    keys = {"grain_train_files": folder / "a.jsonl", "train_data_columns": "messages"}
    if template is not None:
        (folder / "t.jinja").write_text(template)
        keys["chat_template"] = folder / "t.jinja"
    err = refused(dataset_type="grain", use_sft=True, **keys)
    assert [text for text in says if text not in err] == []


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "it is empty"), (b"\x0a\x05spam", "or cut off"), (b"{}", "is no SentencePiece model")],
)
def test_a_damaged_sentencepiece_model_is_one_clear_error(
    refused, documents, tmp_path_factory, content, says
) -> None:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    path.write_bytes(content)
    keys = {"tokenizer_type": "sentencepiece", "tokenizer_path": path}
    assert says in refused(dataset_type="grain", grain_train_files=documents, **keys)


def test_data_sets_without_their_package_are_one_clear_error(refused, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    err = refused(dataset_type="hf", hf_path="json", hf_train_files="a.jsonl")
    assert "dataset_type=hf needs the package datasets: pip install datasets" in err


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_byte_order_mark_is_no_part_of_the_text(runs, name) -> None:
    keys = {"dataset_type": "grain", "grain_train_files": runs.folder / name, "steps": 1}
    logged = []
    for mark in ("", "\ufeff"):
        (runs.folder / name).write_text(mark + GOOD * 9)
        logged += runs.here(f"metrics{len(mark)}", **keys)
    assert logged[0] == logged[1]


def test_data_without_a_pair_of_tokens_are_one_clear_error(runs, capsys) -> None:
    path = runs.folder / "empty.jsonl"
    path.write_text('{"text": ""}\n')
    keys = {"dataset_type": "grain", "grain_train_files": path, "add_bos": False}
    assert runs.code("run", run_name="run", enable_checkpointing=True, add_eos=False, **keys) == 2
    err = capsys.readouterr().err
    assert "none of the 1 documents has a token to predict" in err
    assert err.count("\n") == 1
    assert runs.checkpoints("run") == []


def test_bad_evaluation_data_is_one_clear_error_before_training(refused, runs, documents) -> None:
    path = runs.folder / "eval.jsonl"
    path.write_text("{broken\n")
    keys = {"dataset_type": "grain", "grain_train_files": documents, "grain_eval_files": path}
    assert "eval.jsonl:1" in refused(eval_interval=10, **keys)


def test_data_that_turn_bad_leave_a_checkpoint_of_the_steps_before(runs, capsys) -> None:
    path = runs.folder / "late.jsonl"
    line = json.dumps({"text": "x" * 40}) + "\n"
    path.write_text(line * 400 + '{"text": 5}\n' + line * 400)
    keys = {"dataset_type": "grain", "grain_train_files": path, "enable_data_shuffling": False}
    code = runs.code("run", steps=500, run_name="run", enable_checkpointing=True, **keys)
    err = capsys.readouterr().err
    assert code == 2
    assert "late.jsonl:401" in err
    assert err.count("\n") == 1
    done = len(runs.steps("run"))
    assert runs.checkpoints("run") == [done]
    assert done > 0

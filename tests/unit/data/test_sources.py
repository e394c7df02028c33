import pickle
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from maxtext.data import jsonl, parquet, sources
from maxtext.data.arrayrecord import parse_example
from maxtext.data.records import Columns
from maxtext.data.sources import find_files, open_source

TEXT = Columns(("text",), "train_data_columns")
TEXTS = ["first", "second\nline", "dritte — 漢", ""]


def open_one(path, form=TEXT, file_type="auto"):
    return open_source([path], file_type=file_type, form=form)


def write_arrayrecord(path, records):
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def field(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def example(**features: bytes) -> bytes:
    entries = [
        field(1, field(1, name.encode()) + field(2, field(1, field(1, value))))
        for name, value in features.items()
    ]
    return field(1, b"".join(entries))


def write_all_formats(folder):
    import json

    (folder / "a.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in TEXTS))
    pq.write_table(pa.table({"text": TEXTS, "n": [1, 2, 3, 4]}), folder / "b.parquet")
    rows = {
        "text": [one.encode() for one in TEXTS],
        "json": [json.dumps({"text": one}).encode() for one in TEXTS],
        "example": [example(text=one.encode(), label=b"x" * 300) for one in TEXTS],
    }
    for name, records in rows.items():
        write_arrayrecord(folder / f"{name}.arrayrecord", records)


@pytest.mark.parametrize(
    "name", ["a.jsonl", "b.parquet", "text.arrayrecord", "json.arrayrecord", "example.arrayrecord"]
)
def test_every_format_gives_the_same_documents_in_any_order(tmp_path, name):
    write_all_formats(tmp_path)
    source = open_one(tmp_path / name)
    assert [source[index] for index in range(len(source))] == TEXTS
    assert [source[index] for index in (3, 0, 2, 1)] == [TEXTS[index] for index in (3, 0, 2, 1)]
    again = pickle.loads(pickle.dumps(source))
    assert [again[index] for index in range(len(again))] == TEXTS


def test_a_text_file_is_one_document(tmp_path):
    for name, text in (("b.txt", "two\nlines\n"), ("a.txt", "one")):
        (tmp_path / name).write_text(text)
    paths = find_files(f"{tmp_path}/*.txt", key="grain_train_files")
    source = open_source(paths, file_type="auto", form=TEXT)
    assert [source[0], source[1]] == ["one", "two\nlines\n"]


def test_columns_are_joined_by_newlines_in_the_order_asked(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "1", "b": "2", "c": 3}')
    assert open_one(path, Columns(("b", "a"), "train_data_columns"))[0] == "2\n1"


def test_lines_end_in_any_way_and_empty_ones_do_not_count(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n{"text": "a"}\r\n\n\n{"text": "b"}\n{"text": "c"}')
    source = open_one(path)
    assert [source[index] for index in range(len(source))] == ["a", "b", "c"]


def test_lines_are_found_across_blocks(tmp_path, monkeypatch, write_jsonl):
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 7)
    texts = ["x" * length for length in range(30)]
    source = open_one(write_jsonl(texts))
    assert [source[index] for index in range(len(source))] == texts


def test_the_line_of_an_error_is_right_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 7)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": "b"}\n{"text": 3}\n{"text": "c"}\n')
    source = open_one(path)
    with pytest.raises(ValueError, match=r"a\.jsonl:4: column 'text' is int, not text"):
        source[2]


def test_long_indexing_shows_its_progress_on_stderr(write_jsonl, monkeypatch, capsys):
    path = write_jsonl(["a"] * 10)
    open_one(path)
    assert not capsys.readouterr().err
    monkeypatch.setattr(jsonl, "SECONDS_BEFORE_PROGRESS", 0.0)
    open_one(path)
    assert "finding lines of documents.jsonl" in capsys.readouterr().err


def test_few_files_stay_open_at_once(write_jsonl, monkeypatch):
    monkeypatch.setattr(sources, "OPEN_FILES", 2)
    paths = [write_jsonl([str(number)], f"{number}.jsonl") for number in range(5)]
    source = open_source(paths, file_type="auto", form=TEXT)
    for index in (0, 1, 2, 3, 4, 0, 4, 2):
        assert source[index] == str(index)
        assert sum(file._map is not None for file in source._files) <= 2


def test_row_groups_leave_the_cache_when_it_is_full(tmp_path, monkeypatch):
    texts = [str(number) * 100 for number in range(12)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=3)
    monkeypatch.setattr(parquet, "CACHE_BYTES", 1000)
    source = open_one(tmp_path / "a.parquet")
    assert [source[index] for index in range(12)] == texts
    assert [source[index] for index in (11, 0, 5)] == [texts[index] for index in (11, 0, 5)]
    cache = source._files[0]._cache
    assert len(cache._tables) <= 3
    assert cache._bytes == sum(table.nbytes for table in cache._tables.values())


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"pip install pyarrow"):
        open_one(tmp_path / "a.parquet")


BAD_FILES = {
    "empty": ("a.jsonl", b"", r"a\.jsonl:1: the file is empty"),
    "only blank lines": ("a.jsonl", b"\n\n", r"a\.jsonl:1: .* no lines"),
    "missing column": ("a.jsonl", b'{"title": "x"}\n', r":1: no column 'text'; there are title"),
    "no text": ("a.jsonl", b'{"text": null}\n', r":1: column 'text' is NoneType"),
    "no object": ("a.jsonl", b'["text"]\n', r":1: a record must be a JSON object, not list"),
    "invalid JSON": ("a.jsonl", b"{text: 1}\n", r":1: invalid JSON: .* at column 2"),
    "truncated": ("a.jsonl", b'{"text": "a"}\n{"te', r":2: invalid JSON.*may be cut off"),
    "not UTF-8": ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', r":2: not UTF-8 .byte 0xff"),
    "half a pair": ("a.jsonl", b'{"text": "\\ud800"}\n', r":1: half a surrogate pair .*ud800"),
    "empty text": ("a.txt", b"", r"a\.txt:1: the file is empty"),
    "text not UTF-8": ("a.txt", b"a\nb\xff", r"a\.txt:2: not UTF-8"),
    "compressed": ("a.jsonl.gz", b"x", r"a\.jsonl\.gz is compressed"),
    "unknown suffix": ("a.csv", b"x", r"unknown suffix '\.csv'; known are \.jsonl, "),
    "no parquet": ("a.parquet", b"PAR1 and no more", r"a\.parquet:row 1: no parquet file"),
    "no arrayrecord": ("a.arrayrecord", b"not one", r"a\.arrayrecord:record 1: no ArrayRecord"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_named_with_its_line(tmp_path, case):
    name, content, message = BAD_FILES[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_one(tmp_path / name)


def test_a_parquet_file_without_the_column_is_named(tmp_path):
    pq.write_table(pa.table({"content": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"row 1: no column 'text'; there are content; set train"):
        open_one(tmp_path / "a.parquet")


def test_a_parquet_row_without_text_is_named(tmp_path):
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet:row 2: column 'text' is NoneType"):
        open_one(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([b'{"text": "a"}', b"plain"], "record 2: invalid JSON"),
        ([example(text=b"a"), b"plain"], "record 2: no tf.train.Example"),
        ([example(text=b"a"), example(other=b"a")], "record 2: no column 'text'; there are other"),
        ([b"plain", b"\xff"], "record 2: not UTF-8"),
        ([], "the file has no records"),
    ],
)
def test_a_bad_record_is_named(tmp_path, records, message):
    path = write_arrayrecord(tmp_path / "a.arrayrecord", records)
    with pytest.raises(ValueError, match=message):
        open_one(path)


@pytest.mark.parametrize("file_type", ["jsonl", "txt"])
def test_a_file_type_that_is_asked_for_wins_over_the_suffix(tmp_path, file_type):
    path = tmp_path / "a.data"
    path.write_text('{"text": "a"}')
    want = {"jsonl": "a", "txt": '{"text": "a"}'}[file_type]
    assert open_one(path, file_type=file_type)[0] == want


def test_an_example_keeps_the_bytes_of_each_feature():
    record = example(text="漢".encode(), empty=b"", long=b"y" * 20000)
    assert parse_example(record, "") == {"text": "漢".encode(), "empty": b"", "long": b"y" * 20000}


def test_features_of_other_types_are_passed_over():
    numbers = field(1, field(1, b"ids") + field(2, field(3, b"\x0a\x01\x05")))
    record = field(1, numbers + field(1, field(1, b"text") + field(2, field(1, field(1, b"a")))))
    assert parse_example(record, "") == {"text": b"a"}


@pytest.mark.parametrize("cut", range(1, 20))
def test_an_example_that_is_cut_off_is_refused(cut):
    record = example(text=b"abcdefgh")
    with pytest.raises(ValueError, match=r"a:1: no tf\.train\.Example"):
        parse_example(record[:-cut], "a:1")


def test_files_are_sorted_and_come_once(tmp_path):
    for name in ("b.txt", "a.txt", "c.jsonl"):
        (tmp_path / name).write_text("x")
    got = find_files(f"{tmp_path}/*.txt, {tmp_path}/a.txt,{tmp_path}/./*.jsonl", key="k")
    assert [path.name for path in got] == ["a.txt", "b.txt", "c.jsonl"]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ("", "grain_train_files is empty"),
        (" , ", "grain_train_files is empty"),
        ("/nowhere/*.jsonl", r"grain_train_files: no file matches '/nowhere/\*\.jsonl'"),
        ("gs://bucket/a.jsonl", "must be mounted or copied"),
    ],
)
def test_files_that_do_not_exist_are_named(patterns, message):
    with pytest.raises(ValueError, match=message):
        find_files(patterns, key="grain_train_files")


def test_the_digest_tells_files_apart(write_jsonl):
    paths = [write_jsonl([text], f"{text}.jsonl") for text in ("a", "b")]
    digests = {open_one(path).digest for path in paths}
    both = [
        open_source(order, file_type="auto", form=TEXT).digest for order in (paths, paths[::-1])
    ]
    assert len({*digests, *both}) == 4

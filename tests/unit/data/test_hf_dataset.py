"""Data sets of Hugging Face's package, from local folders: no network."""

import itertools
import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maxtext.data.batch import Shard, batch_digest
from maxtext.data.iterators import make_eval_iterator, make_train_iterator

datasets = pytest.importorskip("datasets", reason="needs the package datasets (extra hf)")

TEXTS = [chr(ord("A") + number) * (1 + 7 * number) for number in range(26)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def data(tmp_path):
    """The same rows as a folder of files, as a saved data set, and as one with splits."""
    folder = tmp_path / "folder"
    folder.mkdir()
    pq.write_table(pa.table({"text": TEXTS, "n": list(range(26))}), folder / "train-0.parquet")
    pq.write_table(pa.table({"text": TEXTS[:5], "n": [0] * 5}), folder / "validation-0.parquet")
    made = datasets.Dataset.from_dict({"text": TEXTS})
    made.save_to_disk(str(tmp_path / "saved"))
    both = datasets.DatasetDict({"train": made, "validation": made.select(range(5))})
    both.save_to_disk(str(tmp_path / "splits"))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (tmp_path / "lines.jsonl").write_text(lines)
    return tmp_path


@pytest.fixture
def make(make_config):
    def make(evaluate=False, **keys):
        base = {"dataset_type": "hf", "max_target_length": 32, "num_epoch": 1}
        maker = make_eval_iterator if evaluate else make_train_iterator
        return maker(make_config(**(base | keys)), rows=3, shard=Shard(0, 1), vocab_size=256)

    return make


def digests(iterator, count=None):
    return [batch_digest(batch) for batch in itertools.islice(iterator, count)]


def test_every_way_to_name_the_rows_gives_those_of_the_file(make, data):
    want = digests(
        make(dataset_type="grain", grain_train_files=str(data / "lines.jsonl"), hf_path="")
    )
    for keys in (
        {"hf_path": str(data / "folder")},
        {"hf_path": str(data / "saved")},
        {"hf_path": str(data / "splits")},
        {"hf_path": "json", "hf_train_files": str(data / "lines.jsonl")},
        {"hf_path": str(data), "hf_data_dir": "folder"},
    ):
        assert digests(make(**keys)) == want, keys


def test_evaluation_reads_its_own_split_or_files(make, data):
    splits = [
        digests(make(evaluate=True, hf_path=str(data / name), hf_eval_split="validation"))
        for name in ("folder", "splits")
    ]
    assert splits[0] == splits[1]
    whole = make(evaluate=True, hf_path="json", hf_eval_files=str(data / "lines.jsonl"))
    assert len(digests(whole)) > len(splits[0])


def test_a_stream_goes_on_to_the_bit_and_other_rows_are_refused(make, data):
    keys = {"hf_path": str(data / "folder"), "num_epoch": -1}
    whole = digests(make(**keys), 40)
    iterator = make(**keys)
    digests(iterator, 17)
    again = make(**keys)
    again.set_state(json.loads(json.dumps(iterator.get_state())))
    assert digests(again, 23) == whole[17:]
    with pytest.raises(ValueError, match=r"hf_path: saved '26 rows of .*, now '5 rows of "):
        make(**keys, train_split="validation").set_state(iterator.get_state())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"hf_path": "nowhere"}, r"hf_path=\S*nowhere \(split 'train'\) cannot be read: "),
        ({"train_split": "test"}, r"\(split 'test'\) cannot be read: .*test"),
        ({"hf_path": "splits", "train_split": "test"}, "there are the splits train, validation"),
        ({"train_data_columns": ("words",)}, "row 1: no column 'words'; there are text, n; set"),
        ({"train_data_columns": ("n",)}, "row 1: column 'n' is int, not text"),
        ({"hf_path": "cut"}, "cannot be read: .*"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_one_error_that_names_it(make, data, keys, says):
    (data / "cut").mkdir()
    content = (data / "folder" / "train-0.parquet").read_bytes()
    (data / "cut" / "train-0.parquet").write_bytes(content[:200])
    path = str(data / keys.pop("hf_path", "folder"))
    with pytest.raises(ValueError, match=says) as caught:
        make(hf_path=path, **keys)
    assert "\n" not in str(caught.value)


def test_without_the_package_the_error_says_what_to_install(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"needs the package datasets: pip install datasets"):
        make(hf_path="json")

"""Data sets of Hugging Face's package, from local folders: no network."""

import itertools
import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maxtext.data.batch import Shard, batch_digest, own_state
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


@pytest.mark.parametrize("streaming", [False, True])
def test_chats_of_a_data_set_count_answers_alone(make, tmp_path, streaming):
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": talk, "id": 5}) + "\n")
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    (batch,) = make(
        hf_path="json",
        hf_train_files=str(tmp_path / "chats.jsonl"),
        hf_streaming=streaming,
        use_sft=True,
        train_data_columns=("messages",),
        chat_template=str(tmp_path / "t.jinja"),
    )
    assert bytes(batch.targets[batch.counts].tolist()) == b"ho;"
    assert bytes(batch.inputs[batch.segments != 0].tolist()) == b"[user]hi;[assistant]ho"


STREAMS = [
    {"hf_path": "folder", "hf_streaming": True, "grain_shuffle_buffer_size": 7},
    {"hf_path": "saved", "hf_streaming": True, "grain_shuffle_buffer_size": 100},
    {"hf_path": "folder", "hf_streaming": True, "enable_data_shuffling": False},
]


def first_letters(batches):
    """Of each document that begins in the batches."""
    found = [batch.targets[batch.counts & (batch.inputs == 254)] for batch in batches]
    return [int(one) for letters in found for one in letters]


@pytest.mark.parametrize("keys", STREAMS, ids=str)
@pytest.mark.parametrize("kind", ["concat_then_split", "first_fit"])
def test_a_stream_from_the_disk_goes_on_to_the_bit_from_every_state(make, data, keys, kind):
    keys = keys | {"hf_path": str(data / keys["hf_path"]), "num_epoch": 3}
    keys["grain_packing_type"] = kind
    straight = make(**keys)
    states, whole = [], []
    for batch in straight:
        whole.append(batch_digest(batch))
        states.append(json.loads(json.dumps(straight.get_state())))
    for number in range(0, len(whole), 5):
        again = make(**keys)
        again.set_state(states[number])
        assert digests(again) == whole[number + 1 :]
    straight.reset()
    assert digests(straight) == whole


@pytest.mark.parametrize("keys", STREAMS, ids=str)
def test_each_epoch_of_a_stream_has_every_document_once(make, data, keys):
    letters = first_letters(make(**keys | {"hf_path": str(data / keys["hf_path"]), "num_epoch": 2}))
    every = sorted(ord(text[0]) for text in TEXTS)
    assert [sorted(letters[:26]), sorted(letters[26:])] == [every, every]
    if keys.get("enable_data_shuffling", True):
        assert letters[:26] != letters[26:]
    else:
        assert letters == every * 2
    if keys.get("grain_shuffle_buffer_size") == 7:
        assert sorted(letters[:7]) == every[:7]


def test_processes_share_a_stream_and_others_cannot_go_on_with_it(make_config, data):
    config = make_config(
        dataset_type="hf", hf_path=str(data / "folder"), hf_streaming=True, num_epoch=1
    )
    shards = [Shard(number, 2) for number in (0, 1)]
    parts = [make_train_iterator(config, rows=2, shard=one, vocab_size=256) for one in shards]
    letters = [first_letters(part) for part in parts]
    assert sorted(letters[0] + letters[1]) == sorted(ord(text[0]) for text in TEXTS)
    states = [part.get_state() for part in parts]
    assert own_state(states, Shard(1, 2))["process"] == 1
    with pytest.raises(ValueError, match="2 processes read the stream, and 1 cannot go on"):
        own_state(states, Shard(0, 1))


def test_a_stream_that_turns_bad_is_named_and_stays_where_it_was(make, tmp_path):
    lines = [json.dumps({"text": text}) for text in TEXTS]
    lines[20] = '{"text": 5}'
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    keys = {"hf_path": "json", "hf_train_files": str(tmp_path / "bad.jsonl"), "hf_streaming": True}
    iterator = make(enable_data_shuffling=False, grain_shuffle_buffer_size=5, **keys)
    states = []
    for _ in range(2):
        with pytest.raises(ValueError, match="hf_path=json"):
            list(iterator)
        states.append(iterator.get_state())
    assert states[0] == states[1]
    for text, says in (("", "it has no rows"), ('{"words": "a"}', "row 1: no column 'text'")):
        (tmp_path / "bad.jsonl").write_text(text)
        with pytest.raises(ValueError, match=says):
            make(**keys)


def test_a_stream_without_a_pair_is_an_error_and_no_endless_loop(make, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    keys = {"hf_path": "json", "hf_train_files": str(tmp_path / "a.jsonl"), "hf_streaming": True}
    iterator = make(add_bos=False, add_eos=False, **keys | {"num_epoch": -1})
    with pytest.raises(ValueError, match="no document has a token to predict"):
        next(iterator)

"""M2 and M3 for every source of data and way to pack it, through the command line."""

import json
import math
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

STEPS = 9
CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}|\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
NO_UPDATE = {"learning_rate": 0, "lr_schedule_type": "constant", "steps": 1}


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def chat(prompt, answer):
    roles = ("user", "assistant")
    return [{"role": r, "content": text} for r, text in zip(roles, (prompt, answer), strict=True)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The settings of each source: an epoch of 17 documents is three batches and a half."""
    folder = tmp_path_factory.mktemp("sources")
    texts = [chr(97 + number) + "bcdefghija" * (3 + number % 5) for number in range(17)]
    lines = write_jsonl(folder / "lines.jsonl", [{"text": text} for text in texts])
    few = write_jsonl(folder / "few.jsonl", [{"text": text.upper()} for text in texts[:6]])
    rows = [{"messages": chat(text[:9], text[9:])} for text in texts]
    write_jsonl(folder / "chats.jsonl", rows)
    write_jsonl(folder / "pairs.jsonl", [{"prompt": t[:9], "completion": t[9:]} for t in texts])
    (folder / "chat.jinja").write_text(CHATML)
    pq.write_table(pa.table({"text": texts}), folder / "rows.parquet", row_group_size=5)
    writer = ArrayRecordWriter(str(folder / "records.arrayrecord"), "group_size:1")
    for text in texts:
        writer.write(text.encode())
    writer.close()
    for number, text in enumerate(texts):
        (folder / f"{number:02}.txt").write_text(text)
    (folder / "mix.yml").write_text(
        f"small: {{path: {lines}, weight: 0.7}}\nlarge: {{path: {few}, weight: 0.3}}\n"
    )
    grain = {"dataset_type": "grain"}
    chats = grain | {"use_sft": True, "chat_template": folder / "chat.jinja"}
    return {
        "txt": grain | {"grain_train_files": folder / "*.txt"},
        "jsonl": grain | {"grain_train_files": lines},
        "parquet": grain | {"grain_train_files": folder / "rows.parquet"},
        "arrayrecord": grain | {"grain_train_files": folder / "records.arrayrecord"},
        "hf": {"dataset_type": "hf", "hf_path": "json", "hf_train_files": lines},
        "stream": {"dataset_type": "hf", "hf_path": "json", "hf_train_files": lines}
        | {"hf_streaming": True, "grain_shuffle_buffer_size": 5},
        "weights": grain | {"grain_train_files": f"{lines},3;{few},1"},
        "mixture": grain | {"grain_train_mixture_config_path": folder / "mix.yml"},
        "messages": chats
        | {"grain_train_files": folder / "chats.jsonl", "train_data_columns": "messages"},
        "completions": grain
        | {
            "use_sft": True,
            "grain_train_files": folder / "pairs.jsonl",
            "train_data_columns": "prompt,completion",
        },
    }


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Data sets are read into a folder of the test."""
    import datasets

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf" / "datasets")


FEW = [("hf", 0, "concat_then_split"), ("weights", 0, "first_fit"), ("messages", 0, "first_fit")]
ALL = [
    ("txt", 2, "concat_then_split"),
    ("jsonl", 2, "first_fit"),
    ("parquet", 0, "first_fit"),
    ("arrayrecord", 2, "concat_then_split"),
    ("hf", 2, "first_fit"),
    ("stream", 0, "concat_then_split"),
    ("weights", 2, "concat_then_split"),
    ("mixture", 0, "first_fit"),
    ("messages", 2, "concat_then_split"),
    ("completions", 0, "first_fit"),
]


def resumed(runs, keys, kind):
    """A run of `STEPS` with two stops, the second one past the first epoch."""
    schedule = {"learning_rate_schedule_steps": STEPS, "grain_packing_type": kind}
    keys = keys | schedule
    want = runs.here("straight", steps=STEPS, **keys)
    for end in (2, 5, STEPS):
        got = runs.here("stops", run_name="stops", steps=end, enable_checkpointing=True, **keys)
    return want, got


@pytest.mark.parametrize(("source", "workers", "kind"), FEW)
def test_two_resumes_leave_no_trace(runs, sources, source, workers, kind) -> None:
    want, got = resumed(runs, sources[source] | {"grain_worker_count": workers}, kind)
    assert got == want
    assert len({step["batch_digest"] for step in want}) == STEPS
    if source == "weights":
        names = ["data/tokens/few.jsonl", "data/tokens/lines.jsonl"]
        total = 0
        for step in got:
            total += step["total_weights"]
            assert sum(step[name] for name in names) == total


@pytest.mark.slow
@pytest.mark.parametrize(("source", "workers", "kind"), ALL)
def test_two_resumes_leave_no_trace_of_any_source(runs, sources, source, workers, kind) -> None:
    keys = sources[source] | {"grain_worker_count": workers}
    want, got = resumed(runs, keys, kind)
    assert got == want
    assert len({step["batch_digest"] for step in want}) == STEPS


def record_of(source, text):
    """A document of two parts, as a record of a source."""
    if source == "messages":
        return {"messages": chat(*text)}
    if source == "completions":
        return {"prompt": text[0], "completion": text[1]}
    return {"text": "".join(text)}


def keys_of(source, folder, texts):
    """Writes documents, and says how they are read."""
    records = [record_of(source, text) for text in texts]
    path = write_jsonl(folder / "texts.jsonl", records)
    if source == "hf":
        return {"dataset_type": "hf", "hf_path": "json", "hf_train_files": path}
    if source == "mixture" and texts[1:]:
        paths = [write_jsonl(folder / f"{n}.jsonl", [one]) for n, one in enumerate(records)]
        path = ";".join(f"{one},1" for one in paths)
    keys = {"dataset_type": "grain", "grain_train_files": path}
    if source == "messages":
        (folder / "chat.jinja").write_text(CHATML)
        keys |= {"train_data_columns": "messages", "chat_template": folder / "chat.jinja"}
    if source == "completions":
        keys |= {"train_data_columns": "prompt,completion"}
    return keys | ({"use_sft": True} if "train_data_columns" in keys else {})


@pytest.fixture
def loss_sum(runs, tmp_path):
    """The summed loss of documents in one run of a source, and their tokens."""
    saves = {"enable_checkpointing": True, "checkpoint_period": 1000}
    runs.here("teacher", steps=20, learning_rate=1e-2, run_name="teacher", **saves)

    def loss_sum(source, *texts, **keys):
        (step,) = runs.here(
            "loss",
            enable_data_shuffling=False,
            num_epoch=1,
            max_target_length=96,
            load_parameters_path=runs.output / "teacher",
            **NO_UPDATE,
            **keys_of(source, tmp_path, texts),
            **keys,
        )
        return step["loss"] * step["total_weights"], step["total_weights"]

    return loss_sum


ONE, OTHER = ("to be, or ", "not to be"), ("that is ", "it")
# A document with its marks makes one pair fewer than tokens; of a chat, the answer and its mark
# count, of a completion itself and EOS.
WEIGHTS = {
    "hf": [len("".join(text)) + 1 for text in (ONE, OTHER)],
    "mixture": [len("".join(text)) + 1 for text in (ONE, OTHER)],
    "messages": [len(text[1]) + 1 for text in (ONE, OTHER)],
    "completions": [len(text[1]) + 1 for text in (ONE, OTHER)],
}


@pytest.mark.parametrize(
    "source",
    [
        "mixture",
        "messages",
        pytest.param("hf", marks=pytest.mark.slow),
        pytest.param("completions", marks=pytest.mark.slow),
    ],
)
def test_documents_cost_alone_what_they_cost_packed_in_any_order(loss_sum, source) -> None:
    one, other = loss_sum(source, ONE), loss_sum(source, OTHER)
    assert [one[1], other[1]] == WEIGHTS[source]
    for texts, keys in (
        ((ONE, OTHER), {}),
        ((OTHER, ONE), {"grain_packing_type": "first_fit"}),
        ((ONE, OTHER), {"packing": False}),
    ):
        together = loss_sum(source, *texts, **keys)
        assert together[1] == one[1] + other[1]
        assert math.isclose(together[0], one[0] + other[0], rel_tol=1e-5)


def test_what_is_read_changes_the_loss_of_what_counts(loss_sum) -> None:
    """The same answer after another question: as many tokens, another loss."""
    first, second = loss_sum("messages", ONE), loss_sum("messages", ("to sleep? ", ONE[1]))
    assert first[1] == second[1]
    assert not math.isclose(first[0], second[0], rel_tol=1e-4)
    everything = loss_sum("messages", ONE, sft_train_on_completion_only=False)
    assert everything[1] == len("<user>|\n<assistant>|\n") + len("".join(ONE)) - 1


def test_evaluation_of_chats_counts_answers_alone(runs, sources) -> None:
    draw = random.Random(3)
    keys = sources["messages"]
    keys = keys | {
        "grain_eval_files": keys["grain_train_files"],
        "eval_data_columns": "messages",
        "eval_interval": 1,
        "grain_packing_type": "first_fit",
    }
    sizes = draw.sample([1, 2, 4], 2)
    got = []
    for size in sizes:
        runs.here("eval", eval_per_device_batch_size=size, **NO_UPDATE, **keys)
        got += runs.evaluations("eval")
    answers = sum(10 * (3 + number % 5) + 1 - 9 + 1 for number in range(17))
    assert [one["eval/total_weights"] for one in got] == [answers] * 2
    assert math.isclose(got[0]["eval/avg_loss"], got[1]["eval/avg_loss"], rel_tol=1e-5)

"""What only devices, data or files can show to be wrong: one clear error each, nothing written."""

import errno
import gzip
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

KV_SPLIT_OFF = "{kv_heads: [], activation_kv_heads: []}"
GOOD = '{"text": "a good line"}\n'
FULL = "stdout cannot be written: No space left on device"
BAD_MESHES = {
    "degrees that do not fit the devices": (
        {"ici_tensor_parallelism": 3},
        ("ici_tensor_parallelism=3", "does not fit 8 devices"),
    ),
    "more devices than there are": (
        {"ici_fsdp_parallelism": 16},
        ("ici_fsdp_parallelism=16", "8 devices"),
    ),
    "rows that do not divide over context": (
        {"ici_context_parallelism": 2, "max_target_length": 34},
        ("max_target_length=34: context 2", "a multiple of 4 tokens; use 32 or 36"),
    ),
    "rows that do not divide over tensor_sequence": (
        {"ici_tensor_sequence_parallelism": 8, "base_num_kv_heads": 8, "max_target_length": 34},
        ("max_target_length=34: tensor_sequence 8", "use 32 or 40"),
    ),
    "dropout on tokens in another order": (
        {"ici_context_parallelism": 2, "dropout_rate": 0.1},
        ("dropout_rate=0.1", "context_parallel_load_balance=false"),
    ),
    "a fraction of a row": (
        {"per_device_batch_size": 0.3},
        ("per_device_batch_size=0.3", "whole number"),
    ),
    "rows that do not divide": (
        {"per_device_batch_size": 0.5},
        ("per_device_batch_size", "4 rows", "8 devices", "multiple of 1"),
    ),
    "evaluation rows that do not divide": (
        {"eval_per_device_batch_size": 0.5, "eval_interval": 1, "eval_steps": 1},
        ("eval_per_device_batch_size", "4 rows"),
    ),
    "kv heads that do not divide": (
        {"ici_tensor_parallelism": 4},
        ("'kv_heads' of size 2", "tensor 4", f"logical_axis_rules='{KV_SPLIT_OFF}'"),
    ),
    "a vocabulary that does not divide": (
        {"ici_tensor_parallelism": 2, "vocab_size": 257},
        ("'vocab' of size 257", "tensor 2"),
    ),
    "an embedding that does not divide": (
        {"base_emb_dim": 60},
        ("'embed' of size 60", "fsdp 8", "more: "),
    ),
    "tiles of the vocabulary that do not divide": (
        {"ici_tensor_parallelism": 2, "num_vocab_tiling": 256},
        ("num_vocab_tiling=256", "1 tokens of the vocabulary", "2 devices"),
    ),
    "more rows than can be counted": (
        {"per_device_batch_size": 1e30},
        ("per_device_batch_size", "more than a batch can hold"),
    ),
    "more passes than can be counted": (
        {"gradient_accumulation_steps": 2**31 - 1},
        ("gradient_accumulation_steps", "more than a batch can hold"),
    ),
    "rows longer than can be counted": (
        {"max_target_length": 2**30, "max_position_embeddings": 2**30},
        ("max_target_length", "more than a batch can hold"),
    ),
    "a model larger than the machine": (
        {"base_emb_dim": 80_000_000},
        ("weights and optimizer take", "GiB", "this machine has"),
    ),
}
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


@pytest.fixture
def refused(runs, capsys):
    """The error of a run that has to end with code 2 before it writes anything."""

    def refused(**keys):
        before = sorted(runs.folder.rglob("*"))
        code = runs.code(
            "bad", run_name="bad", enable_checkpointing=True, enable_tensorboard=True, **keys
        )
        err = capsys.readouterr().err
        assert code == 2, err
        assert err.startswith("error: ")
        assert err.count("error: ") == 1, err
        assert err.count("\n") <= 2, err
        assert "Traceback" not in err
        assert sorted(runs.folder.rglob("*")) == before
        return err

    return refused


@pytest.mark.parametrize(("keys", "says"), BAD_MESHES.values(), ids=BAD_MESHES)
def test_what_does_not_fit_the_devices_is_one_clear_error(refused, keys, says) -> None:
    err = refused(**keys)
    assert [text for text in says if text not in err] == []


def test_the_remedy_for_kv_heads_works(runs) -> None:
    runs.here("good", steps=1, ici_tensor_parallelism=4, logical_axis_rules=KV_SPLIT_OFF)


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


def test_a_metrics_file_of_something_else_is_refused_and_kept(refused, runs) -> None:
    path = runs.folder / "bad.jsonl"
    path.write_text("dear diary\n")
    err = refused(steps=1)
    assert "metrics_file" in err
    assert path.read_text() == "dear diary\n"


def test_an_output_folder_below_a_file_is_refused(refused, runs) -> None:
    (runs.folder / "file").write_text("")
    assert "is not a folder" in refused(base_output_directory=runs.folder / "file" / "runs")


@pytest.mark.parametrize(
    "module", ["maxtext", "maxtext.config", "maxtext.config.load", "maxtext.train"]
)
def test_an_import_waits_for_no_jax(module) -> None:
    program = f"import sys, {module}; print(sorted({{'jax', 'numpy', 'grain'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "[]\n"


def test_a_home_folder_is_written_out(runs, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(runs.folder))
    keys = {"base_output_directory": "~/mine", "run_name": "run", "enable_checkpointing": True}
    runs.here("home", steps=1, **keys)
    assert (runs.folder / "mine" / "run" / "checkpoints" / "1").is_dir()


def test_the_config_is_printed_and_nothing_starts(runs, capsys) -> None:
    assert runs.code("print", print_config=True, steps=7) == 0
    lines = capsys.readouterr().out.splitlines()
    (steps,) = [line for line in lines if line.startswith("steps ")]
    assert steps.split()[1:] == ["7", "command", "line"]
    (heads,) = [line for line in lines if line.startswith("base_num_kv_heads ")]
    assert "t0.yml:" in heads
    assert list(runs.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a"), "No space left on device: a"),
        (MemoryError(), "out of memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."), "out of memory"),
    ],
)
def test_what_the_machine_has_not_is_one_line(runs, capsys, monkeypatch, error, says) -> None:
    def fail(config):
        raise error

    monkeypatch.setattr("maxtext.training.loop.train", fail)
    assert runs.code("run") == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {says}")
    assert err.count("\n") == 1


def test_an_error_of_ours_keeps_its_traceback(runs, monkeypatch) -> None:
    def fail(config):
        raise RuntimeError("ours")

    monkeypatch.setattr("maxtext.training.loop.train", fail)
    with pytest.raises(RuntimeError, match="ours"):
        runs.code("run")


def test_another_models_checkpoint_is_one_error_of_several_lines(runs, capsys) -> None:
    saves = {"run_name": "run", "enable_checkpointing": True}
    runs.here("run", steps=1, **saves)
    assert runs.code("run", steps=2, base_emb_dim=128, **saves) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("error: checkpoint step 1 ")
    assert "is not of this model" in first
    assert others
    assert all(line.startswith("  ") for line in others)
    assert runs.checkpoints("run") == [1]


def test_a_reader_that_leaves_early_ends_no_run(runs) -> None:
    process = runs.start("run", steps=9)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() == 0
    assert len(runs.steps("run")) == 9


def test_a_full_stdout_is_said_once_and_ends_no_run(runs) -> None:
    done = program(runs.argv("run", steps=3))
    assert (done.returncode, done.stderr) == (0, f"error: {FULL}\n")
    assert len(runs.steps("run")) == 3


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{"enable_tensorboard": True}, {"metrics_file": "run.jsonl"}])
def test_a_full_disk_ends_a_run_with_one_clear_error(runs, keys) -> None:
    # As if the disk were full: no file may grow over 4 kB.
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (4096, 4096))"
    run = "import signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
    start = "from maxtext.train import main; sys.exit(main(sys.argv[1:]))"
    argv = runs.argv("run", **{"steps": 500, "run_name": "run", "metrics_file": "", **keys})
    done = subprocess.run(
        [sys.executable, "-c", f"{limit}; {run}; {start}", *argv],
        cwd=runs.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: File too large: ")
    assert done.stderr.count("\n") == 1


def test_help_to_a_full_stdout_is_one_clear_error() -> None:
    done = program(["--help"])
    assert (done.returncode, done.stderr) == (1, f"error: {FULL}\n")


def test_devices_that_are_not_there_are_one_clear_error(runs) -> None:
    done = program(runs.argv("run"), JAX_PLATFORMS="rocket")
    assert done.returncode == 2
    assert done.stderr.startswith("error: JAX_PLATFORMS=rocket: ")
    assert done.stderr.count("\n") <= 2


def program(argv, **environ):
    """What `maxtext.train` returns that writes to a full device."""
    with open("/dev/full", "w") as full:
        return subprocess.run(
            [sys.executable, "-m", "maxtext.train", *argv],
            env={**os.environ, **environ},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

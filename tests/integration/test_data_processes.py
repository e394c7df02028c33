"""Two real processes on real files: ends that are not even, and runs that go on with others."""

import json
import socket

import numpy as np
import pytest

pytestmark = pytest.mark.slow

SAVES = {"enable_checkpointing": True, "run_name": "run"}


def start_processes(runs, names, **keys):
    """Runs of one step log each, which lies with process 0; four devices in all."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    count = len(names)
    environ = {} if count == 1 else {"NPROC": "16", "JAX_NUM_PROCESSES": str(count)}
    if count > 1:
        environ["JAX_COORDINATOR_ADDRESS"] = f"localhost:{port}"
    return [
        runs.start(
            name,
            devices=4 // count,
            environ=environ | ({"JAX_PROCESS_ID": str(number)} if count > 1 else {}),
            **keys,
        )
        for number, name in enumerate(names)
    ]


def ended(runs, processes):
    return [runs.finish(process)[0] for process in processes]


@pytest.fixture
def uneven(tmp_path):
    """Documents dealt in turn: process 0 gets the long ones, and six times as many tokens."""
    path = tmp_path / "uneven.jsonl"
    texts = [("long " * 30 if number % 2 == 0 else "short " * 4) for number in range(40)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def keys_for(path):
    return {
        "dataset_type": "grain",
        "grain_train_files": path,
        "grain_eval_files": path,
        "enable_data_shuffling": False,
        "num_epoch": 1,
        "per_device_batch_size": 2,
        "learning_rate_schedule_steps": 100,
    }


def test_data_that_end_unevenly_stop_all_processes_after_the_same_step(runs, uneven) -> None:
    keys = keys_for(uneven) | {"steps": 100, "eval_interval": 1000, **SAVES}
    outputs = ended(runs, start_processes(runs, ["first", "second"], **keys))
    # The short documents of process 1: 20 of 24 letters and two marks, 4 rows of 32 a batch.
    short = -(-20 * 25 // (4 * 32))
    assert f"the data ended after {short} steps" in outputs[0]
    assert len(runs.steps("first")) == short
    assert runs.checkpoints("run") == [short]
    (evaluation,) = runs.evaluations("first")
    assert evaluation["eval/total_weights"] == 20 * 25 + 20 * 151, "evaluation reads all"


def test_other_numbers_of_processes_go_on_and_no_token_is_lost_or_read_twice(
    runs, documents, tmp_path
) -> None:
    """One process, two, and one to the end of an epoch: each letter counts once."""
    mixed = tmp_path / "others.jsonl"
    mixed.write_text(documents.read_text())
    keys = keys_for(documents) | {"enable_data_shuffling": True, **SAVES}
    total = sum(len(json.loads(line)["text"]) + 1 for line in documents.read_text().splitlines())
    ended(runs, start_processes(runs, ["log"], steps=3, **keys))
    ended(runs, start_processes(runs, ["log", "other"], steps=7, **keys))
    outputs = ended(runs, start_processes(runs, ["log"], steps=100, **keys))
    steps = runs.steps("log")
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert f"the data ended after {len(steps)} steps" in outputs[0]
    assert sum(step["total_weights"] for step in steps) == total
    weights = {**keys, "grain_train_files": f"{documents},1;{mixed},3", "num_epoch": -1}
    weights |= {"run_name": "mixed"}
    ended(runs, start_processes(runs, ["mixed", "other"], steps=3, **weights))
    ended(runs, start_processes(runs, ["mixed"], steps=6, **weights))
    names = ["data/tokens/documents.jsonl", "data/tokens/others.jsonl"]
    steps = runs.steps("mixed")
    sums = np.cumsum([step["total_weights"] for step in steps])
    assert [sum(step[name] for name in names) for step in steps] == sums.tolist()
    assert 0.6 < steps[-1][names[1]] / sums[-1] < 0.9

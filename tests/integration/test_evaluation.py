"""The loss on held-out data: one number, whatever the batches and the mesh."""

import json
import math

import jax
import numpy as np
import pytest

from maxtext.checkpoint.loading import load_parameters
from maxtext.config.load import load
from maxtext.data.batch import Batch
from maxtext.training.setup import prepare

NO_MARKS = {"add_bos": False, "add_eos": False}


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    """Seven documents that no row splits, packed or not; no batch of 8 rows is ever full."""
    pairs = (5, 27, 10, 22, 15, 17, 8)
    texts = ["x" * (size - 1) + "yz" for size in pairs]
    path = tmp_path_factory.mktemp("held_out") / "held_out.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path, texts


def evaluated(runs, path, **keys):
    keys = {"steps": 2, "eval_interval": 2, "learning_rate": 1e-2, **NO_MARKS} | keys
    runs.here("eval", dataset_type="grain", grain_train_files=path, grain_eval_files=path, **keys)
    (record,) = runs.evaluations("eval")
    return record


def direct_loss(runs, texts):
    """The loss of the saved weights, each document alone in a batch of its own."""
    setup = prepare(load(runs.argv("x"), {}).config)
    params = load_parameters(runs.output / "saved", setup.abstract.params)
    loss_fn = jax.jit(setup.loss_fn(dropout=False))
    total = tokens = 0
    for text in texts:
        ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)[None]
        sums = loss_fn(
            jax.device_get(params),
            Batch(
                inputs=ids[:, :-1],
                targets=ids[:, 1:],
                positions=np.arange(ids.size - 1, dtype=np.int32)[None],
                segments=np.ones((1, ids.size - 1), np.int32),
            ),
        )
        total, tokens = total + float(sums.cross_entropy), tokens + int(sums.tokens)
    return total / tokens, tokens


@pytest.mark.parametrize("packing", [True, False])
def test_it_is_the_loss_of_each_document_alone(runs, held_out, packing) -> None:
    path, texts = held_out
    saves = {"enable_checkpointing": True, "run_name": "saved"}
    got = evaluated(runs, path, packing=packing, **saves)
    loss, tokens = direct_loss(runs, texts)
    assert got["eval/total_weights"] == tokens
    assert math.isclose(got["eval/avg_loss"], loss, rel_tol=1e-5)


@pytest.mark.parametrize(
    "keys",
    [
        {"eval_per_device_batch_size": 2},
        {"eval_per_device_batch_size": 0.5, "ici_tensor_parallelism": 2},
        {"packing": False, "eval_per_device_batch_size": 1},
        {"eval_per_device_batch_size": 0.25, "ici_context_parallelism": 4},
        pytest.param(
            {
                "eval_per_device_batch_size": 0.75,
                "ici_context_parallelism": 4,
                "context_parallel_strategy": "ring",
                "packing": False,
            },
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "eval_per_device_batch_size": 0.5,
                "ici_context_parallelism": 2,
                "ici_tensor_sequence_parallelism": 2,
            },
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "eval_per_device_batch_size": 1.5,
                "ici_tensor_sequence_parallelism": 4,
                "logical_axis_rules": "{kv_heads: [], activation_kv_heads: []}",
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_it_does_not_depend_on_the_batches_or_the_mesh(runs, held_out, keys) -> None:
    path, _ = held_out
    steps = {"steps": 1, "eval_interval": 1, "learning_rate": 0, "lr_schedule_type": "constant"}
    want = evaluated(runs, path, **steps)
    got = evaluated(runs, path, **steps, **keys)
    assert got["eval/total_weights"] == want["eval/total_weights"]
    assert math.isclose(got["eval/avg_loss"], want["eval/avg_loss"], rel_tol=1e-5)


def test_it_takes_as_many_batches_as_asked_and_all_without(runs, held_out) -> None:
    path, texts = held_out
    whole = sum(len(text) - 1 for text in texts)
    unpacked = {"packing": False, "steps": 1}
    every = evaluated(runs, path, eval_interval=1, **unpacked)
    assert every["eval/total_weights"] == whole
    tensor = {"ici_tensor_parallelism": 8, "base_num_kv_heads": 8}
    few = evaluated(
        runs,
        path,
        eval_interval=1,
        eval_steps=2,
        eval_per_device_batch_size=0.25,
        **unpacked,
        **tensor,
    )
    assert few["eval/total_weights"] == sum(len(text) - 1 for text in texts[:4])


def test_it_comes_at_every_interval_and_once_at_the_end(runs, held_out) -> None:
    path, _ = held_out
    keys = {"dataset_type": "grain", "grain_train_files": path, "grain_eval_files": path}
    runs.here("ends", steps=5, eval_interval=2, **keys)
    assert [record["step"] for record in runs.evaluations("ends")] == [1, 3, 4]
    runs.here("even", steps=4, eval_interval=2, **keys)
    assert [record["step"] for record in runs.evaluations("even")] == [1, 3]

"""N steps straight are k + (N - k): every logged value, whatever came between."""

import json
import math

import pytest

SAVES = {"enable_checkpointing": True}
STEPS = 12


def data(documents):
    return {"dataset_type": "grain", "grain_train_files": documents}


@pytest.fixture(scope="module")
def few_documents(tmp_path_factory):
    """An epoch of three batches and a half."""
    path = tmp_path_factory.mktemp("few") / "few.jsonl"
    texts = ["abcdefghij" * (3 + number % 5) for number in range(17)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def stops(runs, *ends, **keys):
    """A run to step `ends[0]`, gone on with to `ends[1]`, and so on; its log in the end."""
    schedule = {"learning_rate_schedule_steps": STEPS}
    for end in ends:
        got = runs.here("stops", run_name="stops", steps=end, **SAVES, **schedule, **keys)
    assert [step["step"] for step in got] == list(range(ends[-1]))
    return got


@pytest.mark.parametrize(
    "keys",
    [
        {"packing": False, "dropout_rate": 0.1, "z_loss_multiplier": 1e-3},
        pytest.param({"gradient_accumulation_steps": 2}, marks=pytest.mark.slow),
        pytest.param(
            {"ici_tensor_parallelism": 2, "async_checkpointing": False, "num_vocab_tiling": 4},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_two_resumes_into_a_later_epoch_leave_no_trace(runs, few_documents, keys) -> None:
    keys = data(few_documents) | {"ici_fsdp_parallelism": 4, "ici_data_parallelism": 2} | keys
    if "ici_tensor_parallelism" in keys:
        keys["ici_data_parallelism"] = 1
    want = runs.here("straight", steps=STEPS, **keys)
    assert stops(runs, 2, 5, STEPS, **keys) == want
    assert len({step["batch_digest"] for step in want}) == STEPS, "each epoch has its own order"


def test_evaluation_between_leaves_no_trace(runs, documents, few_documents) -> None:
    keys = data(documents) | {"grain_eval_files": few_documents}
    want = runs.here("straight", steps=STEPS, **keys)
    assert stops(runs, 5, STEPS, eval_interval=3, **keys) == want
    assert [record["step"] for record in runs.evaluations("stops")] == [2, 4, 5, 8, 11]


def test_synthetic_data_go_on_where_they_stopped(runs) -> None:
    want = runs.here("straight", steps=STEPS)
    assert stops(runs, 5, STEPS) == want


def test_a_run_that_is_done_says_so(runs, capsys) -> None:
    runs.here("done", run_name="done", **SAVES)
    before = runs.records("done")
    capsys.readouterr()
    assert runs.code("done", run_name="done", **SAVES) == 0
    assert "all 5 steps are done already; raise steps to go on" in capsys.readouterr().out
    assert runs.records("done") == before
    assert runs.checkpoints("done") == [5]


def test_the_end_of_the_data_is_a_clean_end_with_a_checkpoint(runs, few_documents, capsys) -> None:
    keys = data(few_documents) | {"num_epoch": 1, "run_name": "end", **SAVES}
    steps = runs.here("end", steps=100, **keys)
    assert "the data ended after 4 steps" in capsys.readouterr().out
    assert len(steps) == 4
    # Of 17 documents of 30 to 70 letters, each with two marks and one pair fewer than tokens.
    letters = sum(10 * (3 + number % 5) for number in range(17))
    assert sum(step["total_weights"] for step in steps) == letters + 17
    assert runs.checkpoints("end") == [4]
    assert runs.here("end", steps=100, **keys) == steps
    assert runs.checkpoints("end") == [4]


def test_an_exploding_run_stops_before_it_is_saved(runs, capsys) -> None:
    keys = {"learning_rate": 1e38, "lr_schedule_type": "constant", "checkpoint_period": 1}
    assert runs.code("nan", run_name="nan", steps=20, **keys, **SAVES) == 1
    err = capsys.readouterr().err
    *good, bad = runs.steps("nan")
    assert not all(math.isfinite(float(bad[name])) for name in ("loss", "grad_norm"))
    for step in good:
        assert all(math.isfinite(float(step[name])) for name in ("loss", "grad_norm"))
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert f"at step {bad['step']} (batch {bad['batch_digest']})" in err
    assert max(runs.checkpoints("nan")) <= bad["step"]


def test_weights_alone_or_the_whole_state_start_another_run_on_another_mesh(runs) -> None:
    fsdp = {"ici_fsdp_parallelism": 8}
    tensor = {"ici_tensor_parallelism": 2, "ici_data_parallelism": 4, "ici_fsdp_parallelism": 1}
    schedule = {"learning_rate_schedule_steps": 10}
    straight = runs.here("straight", steps=10, **fsdp, **schedule)
    runs.here("first", run_name="first", steps=5, **fsdp, **schedule, **SAVES)
    folder = runs.output / "first"
    whole = runs.here(
        "whole", run_name="whole", steps=10, load_full_state_path=folder, **tensor, **schedule
    )
    assert [step["step"] for step in whole] == [5, 6, 7, 8, 9]
    for got, want in zip(whole, straight[5:], strict=True):
        assert got["batch_digest"] == want["batch_digest"]
        assert got["learning_rate"] == want["learning_rate"]
        assert math.isclose(got["loss"], want["loss"], rel_tol=1e-5)
        assert math.isclose(got["grad_norm"], want["grad_norm"], rel_tol=1e-4)
    weights = runs.here(
        "weights", load_parameters_path=folder / "checkpoints" / "5", **tensor, **schedule
    )
    assert [step["step"] for step in weights] == [0, 1, 2, 3, 4]
    norms = [steps[0]["learning/param_norm"] for steps in (weights, straight[5:], straight)]
    assert math.isclose(norms[0], norms[1], rel_tol=1e-6)
    assert not math.isclose(norms[0], norms[2], rel_tol=1e-6)
    assert weights[0]["batch_digest"] == straight[0]["batch_digest"]


def test_an_older_step_is_taken_and_newer_ones_are_set_aside(runs, capsys) -> None:
    keys = {"run_name": "back", "checkpoint_period": 2, "steps": 6, **SAVES}
    want = runs.here("back", **keys)
    assert runs.checkpoints("back") == [2, 4, 6]
    capsys.readouterr()
    assert runs.here("back", restore_step=2, **keys) == want
    assert "set aside newer steps: 4, 6" in capsys.readouterr().out
    assert runs.checkpoints("back") == [2, 4, 6]
    aside = runs.output / "back" / "checkpoints_set_aside"
    assert sorted(entry.name for entry in aside.iterdir()) == ["4", "6"]


@pytest.fixture
def damaged(runs):
    """Damages the largest file of the newest of a run's three steps; goes on with the run."""
    keys = {"run_name": "hurt", "checkpoint_period": 2, **SAVES}
    runs.here("hurt", steps=6, **keys)
    state = runs.output / "hurt" / "checkpoints" / "6" / "state"
    largest = max(
        (path for path in state.rglob("*") if path.is_file()), key=lambda p: p.stat().st_size
    )

    def damaged(damage, **more):
        damage(largest)
        return runs.code("hurt", steps=8, **keys, **more)

    return damaged


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    "damage", [truncate, zero, lambda path: path.unlink()], ids=["truncated", "zeroed", "deleted"]
)
def test_a_damaged_step_is_named_beside_the_intact_one(runs, damaged, damage, capsys) -> None:
    capsys.readouterr()
    before = (runs.folder / "hurt.jsonl").read_bytes()
    assert damaged(damage) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert "checkpoint step 6" in err
    assert "step 4 is intact: restore_step=4" in err
    assert runs.checkpoints("hurt") == [2, 4, 6]
    assert (runs.folder / "hurt.jsonl").read_bytes() == before
    assert damaged(lambda path: None, restore_step=4) == 0
    assert [step["step"] for step in runs.steps("hurt")] == list(range(8))


def test_anothers_model_is_refused_with_paths_and_shapes(runs, capsys) -> None:
    runs.here("other", run_name="other", **SAVES)
    capsys.readouterr()
    shapes = "mlp/wi_0/kernel float32[2,64,128], this run wants float32[2,64,192]"
    # The model of a new run is what the weights that it starts from are of.
    contradicts = "base_mlp_dim=192 (command line): contradicts 128 of "
    override = {"override_model_config": True}
    for keys, says in (
        ({"run_name": "other"}, shapes),
        ({"load_parameters_path": runs.output / "other"}, contradicts),
        ({"load_parameters_path": runs.output / "other", **override}, shapes),
        ({"load_full_state_path": runs.output / "other"}, contradicts),
        ({"load_full_state_path": runs.output / "other", **override}, shapes),
    ):
        assert runs.code("mine", base_mlp_dim=192, **SAVES, **keys) == 2
        err = capsys.readouterr().err
        assert "Traceback" not in err
        assert says in err
        assert not (runs.folder / "mine.jsonl").exists()
    assert [entry.name for entry in runs.output.iterdir()] == ["other"]
    assert runs.checkpoints("other") == [5]


def test_settings_that_change_the_data_are_named(runs, documents, capsys) -> None:
    keys = data(documents) | {"run_name": "other", **SAVES}
    runs.here("other", **keys)
    capsys.readouterr()
    assert runs.code("other", steps=8, data_shuffle_seed=1, **keys) == 2
    err = capsys.readouterr().err
    assert "data_shuffle_seed: saved 0, now 1" in err
    assert "Traceback" not in err

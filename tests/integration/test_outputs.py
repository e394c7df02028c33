"""What a run keeps, where, and what it tells of itself, through the command line."""

import json
import signal

import pytest

SAVES = {"enable_checkpointing": True, "run_name": "run", "checkpoint_period": 4}
EVALUATES = {"eval_interval": 2, "eval_steps": 1}


def goodput(runs, name="run"):
    lines = map(json.loads, (runs.folder / f"{name}.jsonl").read_text().splitlines())
    return [line for line in lines if "goodput/steps" in line]


def assert_is_whole(record) -> None:
    shares = [value for name, value in record.items() if name.startswith("goodput/")]
    total = record["goodput/total_seconds"]
    assert total > 0
    assert sum(shares) - total == pytest.approx(1)
    assert min(shares) >= 0


def eval_loss(runs, step):
    file = runs.output / "run" / "checkpoints" / str(step) / "metrics" / "metadata"
    return json.loads(file.read_text())["eval_loss"]


@pytest.mark.slow
def test_the_best_checkpoint_stays_over_a_resume(runs) -> None:
    # A rate this high makes everything worse than it was.
    keys = EVALUATES | SAVES | {"checkpoint_period": 1, "eval_interval": 1}
    keys |= {"max_num_checkpoints_to_keep": 1, "num_best_checkpoints_to_keep": 1}
    keys |= {"learning_rate": 0.5, "lr_schedule_type": "constant", "warmup_steps_fraction": 0}
    for steps in (2, 5):
        runs.here("run", steps=steps, **keys)
    losses = {line["step"] + 1: line["eval/avg_loss"] for line in runs.evaluations("run")}
    best = min(losses, key=lambda step: (losses[step], step))
    assert best < 5
    assert runs.checkpoints("run") == [best, 5]


def test_a_run_goes_on_from_the_local_checkpoint_where_that_is_newer(runs, capsys) -> None:
    local = {"local_checkpoint_directory": runs.folder / "ssd", "local_checkpoint_period": 1}
    want = runs.here("straight", steps=9, learning_rate_schedule_steps=9)
    keys = SAVES | local | {"learning_rate_schedule_steps": 9}
    runs.here("run", steps=7, save_checkpoint_on_completion=False, **keys)
    assert runs.checkpoints("run") == [4]
    assert [path.name for path in (runs.folder / "ssd" / "run").iterdir()] == ["6"]
    capsys.readouterr()
    assert runs.here("run", steps=9, **keys) == want
    assert "resumed from step 6" in capsys.readouterr().out
    assert runs.checkpoints("run") == [4, 8, 9]


@pytest.mark.slow
def test_a_damaged_local_checkpoint_costs_the_steps_since_the_other(runs, capsys) -> None:
    local = {"local_checkpoint_directory": runs.folder / "ssd", "local_checkpoint_period": 1}
    keys = SAVES | local | {"learning_rate_schedule_steps": 9}
    runs.here("run", steps=7, save_checkpoint_on_completion=False, **keys)
    (runs.folder / "ssd" / "run" / "6" / "state" / "manifest.ocdbt").unlink()
    capsys.readouterr()
    steps = runs.here("run", steps=9, **keys)
    out = capsys.readouterr().out
    assert "checkpoint step 6 in" in out
    assert out.count("looking for another one") == 1
    assert "resumed from step 4" in out
    assert "set aside newer steps: 6" in out
    assert [step["step"] for step in steps] == list(range(9))


@pytest.mark.slow
def test_a_command_with_restore_step_started_again_goes_on_from_what_it_wrote(runs, capsys) -> None:
    keys = SAVES | {"checkpoint_period": 2, "max_num_checkpoints_to_keep": -1}
    runs.here("run", steps=6, **keys)
    again = {"restore_step": 2, "steps": 8}
    runs.here("run", **keys | again)
    aside = runs.output / "run" / "checkpoints_set_aside"
    assert sorted(path.name for path in aside.iterdir()) == ["4", "6"]
    # As if killed before the end.
    (runs.output / "run" / "checkpoints" / "8").rename(runs.folder / "8")
    capsys.readouterr()
    runs.here("run", **keys | again)
    out = capsys.readouterr().out
    assert "restore_step=2: newer steps are of this very command" in out
    assert "resumed from step 6" in out
    assert sorted(path.name for path in aside.iterdir()) == ["4", "6"]
    # Another command does what it says.
    runs.here("run", **keys | again | {"learning_rate": 0.01})
    assert "resumed from step 2 of" in capsys.readouterr().out
    assert sorted(path.name for path in aside.iterdir()) == ["4", "4.1", "6", "6.1", "8"]


def test_a_run_that_is_done_compiles_nothing(runs, capsys, monkeypatch) -> None:
    runs.here("run", **SAVES)
    capsys.readouterr()

    def fail(traced):
        raise AssertionError("compiled")

    monkeypatch.setattr("maxtext.training.loop.compile_step", fail)
    runs.here("run", **SAVES)
    assert "all 5 steps are done already" in capsys.readouterr().out
    assert len(goodput(runs)) == 1


def test_a_run_knows_the_loss_at_each_checkpoint_and_what_its_time_went_to(runs, capsys) -> None:
    keys = SAVES | EVALUATES | {"checkpoint_period": 3, "eval_interval": 6}
    runs.here("run", steps=6, **keys)
    (evaluation,) = runs.evaluations("run")
    assert runs.checkpoints("run") == [3, 6]
    assert (eval_loss(runs, 3), eval_loss(runs, 6)) == (None, evaluation["eval/avg_loss"])
    (record,) = goodput(runs)
    assert_is_whole(record)
    assert record["step"] == 5
    for part in ("steps", "compilation", "checkpoint", "evaluation"):
        assert record[f"goodput/{part}"] > 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("goodput")]
    parts = line.removeprefix("goodput: ").rsplit(" of ", 1)[0].split(", ")
    assert sum(float(part.split()[-2]) for part in parts) == pytest.approx(100, abs=1e-6)


def test_the_time_of_steps_holds_all_of_each_step_the_last_one_too(runs) -> None:
    runs.here("run", steps=2)
    (record,) = goodput(runs)
    lines = map(json.loads, (runs.folder / "run.jsonl").read_text().splitlines())
    steps = sum(line["seconds"] for line in lines if "loss" in line)
    # Devices are at work while the loop waits for the next batch.
    share = record["goodput/steps"] + record["goodput/input_wait"]
    assert 0 < steps <= share * record["goodput/total_seconds"]


def test_a_trace_holds_the_steps_asked_for(runs, capsys) -> None:
    keys = {"profiler": "xplane", "skip_first_n_steps_for_profiler": 2, "profiler_steps": 2}
    runs.here("run", run_name="run", **keys)
    folder = runs.output / "run" / "tensorboard"
    assert f"trace of steps 2 to 3 in {folder}" in capsys.readouterr().out
    (file,) = folder.glob("plugins/profile/*/*.xplane.pb")
    assert b"train" in file.read_bytes()
    lines = map(json.loads, (runs.folder / "run.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines if "perf/profiler_seconds" in line] == [2, 4]


def test_a_trace_that_the_data_cut_short_is_whole(runs, capsys, tmp_path) -> None:
    (tmp_path / "few.jsonl").write_text(json.dumps({"text": "x" * 31 * 8 * 2}) + "\n")
    data = {"dataset_type": "grain", "grain_train_files": tmp_path / "few.jsonl", "num_epoch": 1}
    runs.here("run", run_name="run", profiler="xplane", profiler_steps=4, **data)
    steps = len(runs.steps("run"))
    assert 1 < steps < 5
    assert f"trace of steps 1 to {steps - 1} in " in capsys.readouterr().out
    assert len(list((runs.output / "run").glob("tensorboard/plugins/profile/*/*.xplane.pb"))) == 1


@pytest.mark.slow
def test_a_run_stopped_by_ctrl_c_tells_its_time_too(runs) -> None:
    process = runs.start("run", steps=100_000, **SAVES | {"checkpoint_period": 1000})
    path = runs.folder / "run.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < 5:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = runs.finish(process, code=130)
    assert not err
    assert out.splitlines()[-1].startswith("goodput: steps ")
    (record,) = goodput(runs)
    assert_is_whole(record)
    assert record["step"] == runs.steps("run")[-1]["step"]

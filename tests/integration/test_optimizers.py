"""Every optimizer resumes and takes the same steps everywhere, with all that goes with it."""

import math

import numpy as np
import pytest

from maxtext.parallel.params import named_leaves
from tiny import Taken, ragged_batch, take_steps, tiny_setup

KINDS = {
    "adamw": {"mu_dtype": "bfloat16"},
    "adafactor": {"adafactor_weight_decay": 0.1},
    "muon": {"muon_consistent_rms": 0.2},
    "lion": {"lion_weight_decay": 0.1},
    "sgd": {"sgd_momentum": 0.9},
}
SPLIT = {"ici_data_parallelism": 2, "ici_fsdp_parallelism": 4, "shard_optimizer_over_data": True}
EVERYTHING = {
    "lr_schedule_type": "wsd",
    "wsd_decay_steps_fraction": 0.5,
    "learning_rate_schedule_steps": 10,
    "skip_step_on_spikes": True,
    "skip_step_interval": 4,
    "skip_step_scaling_factor": 0.5,
    "trainable_parameters_mask": "kernel,layers",
    "gradient_accumulation_steps": 2,
    "grad_dtype": "bfloat16",
}
SAVES = {"enable_checkpointing": True}


def few(*names):
    """The named kinds at every commit, the others in the slow tests."""
    marks = {name: () if name in names else (pytest.mark.slow,) for name in KINDS}
    return [pytest.param(name, marks=marks[name]) for name in KINDS]


@pytest.mark.parametrize("kind", few("muon"))
def test_a_resume_leaves_no_trace(runs, kind) -> None:
    keys = {"opt_type": kind, "learning_rate": 3e-3, **KINDS[kind], **SPLIT, **EVERYTHING}
    want = runs.here("straight", steps=10, **keys)
    for steps in (4, 7, 10):
        got = runs.here("stops", run_name="stops", steps=steps, **SAVES, **keys)
    assert got == want
    skipped = [step["skipped"] for step in want]
    assert skipped[:2] == [0, 0]
    assert sum(skipped) > 0, "nothing is checked of a history that skips nothing"
    assert want[5]["learning_rate"] == pytest.approx(3e-3)
    assert want[9]["learning_rate"] == pytest.approx(3e-3 * (1 - 0.9 * 4 / 5))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_split_over_data_goes_on_on_another_mesh(runs, kind) -> None:
    keys = {"opt_type": kind, "learning_rate_schedule_steps": 8, **KINDS[kind]}
    other = {"ici_data_parallelism": 4, "ici_tensor_parallelism": 2, "ici_fsdp_parallelism": 1}
    want = runs.here("straight", steps=8, **keys, **other)
    runs.here("first", run_name="first", steps=4, **keys, **SPLIT, **SAVES)
    got = runs.here("second", run_name="first", steps=8, **keys, **other, **SAVES)
    for ours, theirs in zip(got, want[4:], strict=True):
        assert ours["batch_digest"] == theirs["batch_digest"]
        assert math.isclose(ours["loss"], theirs["loss"], rel_tol=1e-5), (ours, theirs)
        assert math.isclose(ours["grad_norm"], theirs["grad_norm"], rel_tol=1e-4), (ours, theirs)


def test_a_longer_schedule_and_what_is_trained_are_told(runs, capsys) -> None:
    keys = {"run_name": "longer", "trainable_parameters_mask": "mlp/", **SPLIT, **SAVES}
    runs.here("longer", steps=2, **keys)
    out = capsys.readouterr().out
    assert "trained are 49,152 of 102,720 parameters: 3 of 12 arrays" in out
    assert "optimizer's state is split over data 2: 6 of 6 arrays; 0 GiB do not divide" in out
    assert "follows a schedule" not in out
    runs.here("longer", steps=4, **keys)
    assert (
        "the learning rate follows a schedule of 4 steps, no longer one of 2: 5.500e-04 at step 2; "
        "learning_rate_schedule_steps=2 keeps it"
    ) in capsys.readouterr().out


@pytest.mark.slow
def test_another_optimizers_checkpoint_is_refused_by_name(runs, capsys) -> None:
    runs.here("other", run_name="other", steps=1, opt_type="lion", **SAVES)
    capsys.readouterr()
    assert runs.code("mine", run_name="other", steps=2, opt_type="sgd", **SAVES) == 2
    err = capsys.readouterr().err
    assert "checkpoint has opt_state/lion/mu/token_embedder/embedding float32[256,64]" in err
    assert "only the optimizer's state differs" in err
    assert "Traceback" not in err


MESHES = {
    "data 2 x fsdp 2 x tensor 2, accumulated": (
        "ici_data_parallelism=2",
        "ici_fsdp_parallelism=2",
        "ici_tensor_parallelism=2",
        "shard_optimizer_over_data=true",
        "gradient_accumulation_steps=2",
        "per_device_batch_size=0.5",
    ),
    "fsdp 8": ("ici_fsdp_parallelism=8",),
}


def steps_of(kind: str, *argv: str, devices: int) -> Taken:
    own = (f"{key}={value}" for key, value in KINDS[kind].items())
    keys = (f"opt_type={kind}", "learning_rate=1e-3", *own, *argv)
    return take_steps(tiny_setup(*keys, devices=devices), ragged_batch(), steps=3)


@pytest.fixture(scope="module")
def one_device():
    taken: dict[str, Taken] = {}

    def one(kind: str) -> Taken:
        if kind not in taken:
            taken[kind] = steps_of(kind, devices=1)
        return taken[kind]

    return one


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_takes_the_same_steps_on_every_mesh(one_device, kind, mesh) -> None:
    got, want = steps_of(kind, *MESHES[mesh], devices=8), one_device(kind)
    assert got.metrics.loss == pytest.approx(float(want.metrics.loss), rel=1e-5)
    assert got.metrics.grad_norm == pytest.approx(float(want.metrics.grad_norm), rel=1e-4)
    # Where a gradient is near zero, its sign, and so an update of full size, is a matter of luck.
    for name, leaf in want.params.items():
        far = np.abs(got.params[name] - leaf) > 1e-5
        assert far.mean() < (2e-3 if kind in ("adamw", "lion") else 1e-9), name
    types = named_leaves(want.state.opt_state)
    for name, leaf in named_leaves(got.state.opt_state).items():
        assert leaf.dtype == types[name].dtype, name

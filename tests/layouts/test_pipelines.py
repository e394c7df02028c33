"""Layers in stages on different devices take the steps of one device."""

import functools
import itertools

import numpy as np
import pytest

from tiny import GEMMA2, GEMMA3, Taken, ragged_batch, take_steps, tiny_setup

ROWS, STEPS = 64, 3
# Weights after some steps are as near as the gradients were: Adam would make much of little.
COMMON = ("opt_type=sgd", "learning_rate=0.1")
OTHER_AXES = ("fsdp", "tensor", "tensor_sequence", "context", "data")
FAMILIES = {
    "llama": (),
    "gemma2": (*GEMMA2, "base_num_decoder_layers=8", "num_layers_per_pipeline_stage=2"),
    "gemma3": (*GEMMA3, "base_num_decoder_layers=12", "num_layers_per_pipeline_stage=6"),
}


@functools.cache
def on_one_device(argv: tuple[str, ...]) -> Taken:
    setup = tiny_setup(*COMMON, *argv, f"per_device_batch_size={ROWS}", devices=1)
    return take_steps(setup, ragged_batch(ROWS), steps=STEPS)


def check(mesh: dict[str, int], model: tuple[str, ...], **keys: object) -> None:
    """Holds a pipeline on eight devices against one device."""
    degrees = {"fsdp": 1, **mesh}
    left = 8 // np.prod([*degrees.values()])
    degrees["data"] = degrees.get("data", 1) * left
    settings = [f"ici_{axis}_parallelism={degree}" for axis, degree in degrees.items()]
    keys["per_device_batch_size"] = ROWS / 8 / int(str(keys.get("gradient_accumulation_steps", 1)))
    settings += [f"{key}={str(value).lower()}" for key, value in keys.items()]
    setup = tiny_setup(*COMMON, *model, *settings, devices=8)
    got = take_steps(setup, ragged_batch(ROWS), steps=STEPS)
    weights = tuple(text for text in model if not text.startswith("num_layers_per_pipeline"))
    want = on_one_device(weights)
    assert got.metrics.loss == pytest.approx(want.metrics.loss, rel=1e-5)
    assert got.metrics.grad_norm == pytest.approx(want.metrics.grad_norm, rel=1e-4)
    assert got.metrics.total_weights == want.metrics.total_weights
    for name, weight in want.params.items():
        bound = 1e-5 * np.abs(weight).max()
        np.testing.assert_allclose(got.params[name], weight, rtol=0, atol=bound, err_msg=name)


def layers(count: int) -> tuple[str, ...]:
    return (f"base_num_decoder_layers={count}",)


def test_stages_take_the_steps_of_one_device() -> None:
    check({"pipeline": 2, "fsdp": 2}, layers(4), num_layers_per_pipeline_stage=2)


def test_layers_in_turns_take_the_steps_of_one_device() -> None:
    check(
        {"pipeline": 2, "tensor_sequence": 2},
        layers(4),
        num_pipeline_repeats=2,
        num_pipeline_microbatches=8,
        gradient_accumulation_steps=2,
    )


def test_delayed_stages_over_split_rows_take_the_steps_of_one_device() -> None:
    check(
        {"pipeline": 4, "context": 2},
        layers(4),
        num_pipeline_microbatches=16,
        pipeline_delay_activation_forwarding=True,
        set_remat_policy_on_layers_per_stage=True,
    )


def cells():
    """Every two settings meet in one of them."""
    design = itertools.product(OTHER_AXES, (2, 4), (1, 2))
    for index, (axis, stages, repeats) in enumerate(design):
        microbatches = stages * (1, 2, 4)[index % 3]
        keys = {
            "num_pipeline_repeats": repeats,
            "num_layers_per_pipeline_stage": 4 // stages if repeats == 1 else 1,
            "num_pipeline_microbatches": microbatches,
            "gradient_accumulation_steps": 1 + (index // 2 + index // 4) % 2,
            "pipeline_delay_activation_forwarding": microbatches > stages and index % 2 == 0,
            "scan_pipeline_iterations": index % 7 != 0,
            "scan_layers": index % 5 != 0,
            "fused_qkv": (index + index // 4) % 2 == 1,
            "fused_mlp": (index // 2 + index // 4) % 2 == 1,
            "remat_policy": ("full", "none", "minimal")[index // 3 % 3],
        }
        if keys["remat_policy"] != "none":
            keys["set_remat_policy_on_pipeline_iterations"] = index % 4 < 2
            keys["set_remat_policy_on_layers_per_stage"] = index % 8 < 4
        if axis == "fsdp":
            keys["pipeline_fsdp_ag_once"] = repeats == stages // 2
        count = stages * repeats if repeats > 1 else 4
        name = " ".join([axis, f"stages {stages}", *(f"{k[-12:]} {v}" for k, v in keys.items())])
        yield pytest.param({"pipeline": stages, axis: 2}, layers(count), keys, id=name)


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "model", "keys"), [*cells()])
def test_every_pipeline_takes_the_steps_of_one_device(mesh, model, keys) -> None:
    check(mesh, model, **keys)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_stages_hold_layers_of_several_kinds(family: str) -> None:
    check({"pipeline": 2, "fsdp": 2}, FAMILIES[family], num_pipeline_microbatches=4)


@pytest.mark.slow
def test_dropout_zeroes_in_stages_what_it_zeroes_on_one_device() -> None:
    model = (*layers(4), "dropout_rate=0.3")
    check({"pipeline": 2, "fsdp": 2}, model, num_pipeline_microbatches=8)


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 6])
def test_layers_that_are_left_run_on_all_devices(count: int) -> None:
    keys = {"logical_axis_rules": "{layers: []}"} if count == 5 else {}
    check({"pipeline": 2, "fsdp": 2}, layers(count), pipeline_parallel_layers=4, **keys)

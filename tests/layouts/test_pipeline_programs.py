"""What the compiled programs of pipelines do, read from them."""

import functools

import jax
import pytest

from maxtext.parallel.hlo import instructions
from maxtext.parallel.layout import use_layout
from maxtext.parallel.program import collectives, flops, memory
from tiny import LENGTH, tiny_setup

STAGES, WIDTH, VOCAB = 2, 64, 256
COMMON = (f"ici_pipeline_parallelism={STAGES}", "num_layers_per_pipeline_stage=2")


@functools.cache
def program(*argv: str, rows: int = 32):
    """The compiled gradient of the loss of T0 with `argv` on eight devices, and its mesh."""
    setup = tiny_setup(*COMMON, *argv, f"per_device_batch_size={rows / 8}", devices=8)
    loss, params = setup.loss_fn(dropout=False), setup.abstract.params
    grad = jax.grad(lambda params, batch: loss(params, batch).cross_entropy)
    with use_layout(setup.layout):
        jitted = jax.jit(grad, out_shardings=jax.tree.map(lambda one: one.sharding, params))
        lowered = jitted.lower(params, setup.abstract_batch((rows, LENGTH)))
        return lowered.compile(), setup.layout.mesh


def products(*argv: str) -> set[tuple[bool, int]]:
    """Of all products: whether it is in a loop, and the width of its result on a device."""
    compiled, _ = program(*argv)
    found = [one for one in instructions(compiled.as_text()) if one.opcode == "dot"]
    return {(one.runs > 1, one.arrays[0].shape[-1]) for one in found}


def test_a_rule_of_the_command_line_counts_inside_and_outside_of_stages() -> None:
    # One layer is left, and no other width is 96 or a half of it.
    keys = ("base_num_decoder_layers=5", "pipeline_parallel_layers=4", "base_mlp_dim=96")
    mesh = ("ici_tensor_parallelism=2", "ici_fsdp_parallelism=2")
    split = products(*keys, *mesh, "logical_axis_rules={layers: []}")
    whole = products(*keys, *mesh, "logical_axis_rules={layers: [], mlp: [], activation_mlp: []}")
    assert {(True, 48), (False, 48)} <= split
    assert {(True, 96), (False, 96)} <= whole
    assert {width for _, width in split} & {96} == set()
    assert {width for _, width in whole} & {48} == set()


@pytest.mark.slow
def test_weights_are_gathered_in_each_iteration_or_once() -> None:
    keys = ("base_num_decoder_layers=4", "ici_fsdp_parallelism=4", "num_pipeline_microbatches=4")

    def gathers(once: str) -> int:
        compiled, mesh = program(*keys, f"pipeline_fsdp_ag_once={once}")
        return sum(
            one.runs
            for one in collectives(compiled, mesh)
            if one.kind == "all-gather" and one.axes == ("fsdp",)
        )

    # Of a layer's nine arrays the seven matrices and the two norms, which are not split.
    iterations = 5
    assert gathers("true") <= 9
    assert gathers("false") >= iterations * 7 * 2


def piped(microbatches: int, *argv: str, repeats: int = 1):
    """A program whose microbatches are of eight rows, however many there are."""
    layers = f"base_num_decoder_layers={STAGES * 2 * repeats}"
    mesh = ("ici_data_parallelism=4", "ici_fsdp_parallelism=1")
    count = f"num_pipeline_microbatches={microbatches}"
    return program(layers, *mesh, count, *argv, rows=8 * microbatches)


def test_stages_compute_in_every_iteration_and_in_no_more() -> None:
    """A bubble is (stages - 1) / (repeats * microbatches + stages - 1) of what stages compute."""
    # A device has one row of the eight at the head, whose product runs forward and twice backward.
    head = 3 * 2 * LENGTH * WIDTH * VOCAB
    work = {
        (microbatches, repeats): flops(piped(microbatches, repeats=repeats)[0])
        for microbatches, repeats in ((4, 1), (8, 1), (4, 2))
    }
    of_stages = {case: total - case[0] * head for case, total in work.items()}
    iteration = {
        (microbatches, repeats): total / (repeats * microbatches + STAGES - 1)
        for (microbatches, repeats), total in of_stages.items()
    }
    assert len(set(iteration.values())) == 1


@pytest.mark.parametrize(("microbatches", "repeats"), [(8, 1), (4, 2)])
def test_stages_hand_on_twice_in_an_iteration_and_twice_backward(
    microbatches: int, repeats: int
) -> None:
    compiled, mesh = piped(microbatches, repeats=repeats)
    moves = [one for one in collectives(compiled, mesh) if one.kind == "collective-permute"]
    in_loops = sum(one.runs for one in moves if one.runs > 1)
    assert in_loops == 2 * 2 * (microbatches * repeats + STAGES - 1)


@pytest.mark.slow
def test_a_microbatch_leaves_the_inputs_of_its_stages_and_no_more() -> None:
    # Two rows on a device, float32.
    one = 2 * LENGTH * WIDTH * 4
    full = {count: memory(piped(count)[0]).temporaries for count in (4, 8, 16)}
    slopes = (full[8] - full[4]) / 4, (full[16] - full[8]) / 8
    assert slopes[0] == pytest.approx(slopes[1], rel=0.02)
    # The input of the stage, and its part of what comes in and goes out.
    assert one <= slopes[1] <= 2 * one
    kept = [memory(piped(count, "remat_policy=none")[0]).temporaries for count in (4, 8)]
    assert (kept[1] - kept[0]) / 4 > 10 * slopes[1]
    twice = [memory(piped(count, repeats=2)[0]).temporaries for count in (4, 8)]
    assert slopes[1] + one <= (twice[1] - twice[0]) / 4 <= 2 * 2 * one

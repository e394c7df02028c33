"""What is planned of training is what the compiled step does."""

import functools

import pytest
from jax.stages import Compiled

from maxtext.config.load import load
from maxtext.parallel.layout import use_layout
from maxtext.parallel.program import collectives
from maxtext.planning.exchanges import training_exchanges
from maxtext.planning.training import training_memory
from maxtext.training.setup import Setup, prepare
from maxtext.training.start import trace_step
from tiny import T0

MESHES = {
    "data": ("ici_data_parallelism=8", "ici_fsdp_parallelism=1"),
    "fsdp": ("ici_fsdp_parallelism=8",),
    "fsdp and tensor": ("ici_fsdp_parallelism=4", "ici_tensor_parallelism=2"),
    "data over the optimizer": (
        "ici_data_parallelism=4",
        "ici_fsdp_parallelism=2",
        "shard_optimizer_over_data=true",
    ),
}
CASES = [pytest.param(mesh, marks=() if mesh == "fsdp" else pytest.mark.slow) for mesh in MESHES]
# How near the plan is: without a policy it counts the tensors of a Llama layer by hand.
POLICIES = {"minimal": 0.02, "save_qkv_proj": 0.02, "none": 0.05}


@functools.cache
def step(*argv: str) -> tuple[Setup, Compiled]:
    given = {text.split("=", 1)[0]: text for text in (*T0, "per_device_batch_size=1", *argv)}
    setup = prepare(load(list(given.values()), {}).config)
    with use_layout(setup.layout):
        return setup, trace_step(setup).lower().compile()


@pytest.mark.parametrize("mesh", CASES)
def test_the_program_is_given_what_was_planned(mesh: str) -> None:
    setup, compiled = step(*MESHES[mesh])
    given = compiled.memory_analysis().argument_size_in_bytes
    assert training_memory(setup).arguments == given


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_keeps_what_was_planned(policy: str) -> None:
    found = []
    for remat in ("full", policy):
        setup, compiled = step(*MESHES["data"], f"remat_policy={remat}")
        temporaries = compiled.memory_analysis().temp_size_in_bytes
        found.append((training_memory(setup).activations, temporaries))
    (least, before), (kept, after) = found
    assert after - before == pytest.approx(kept - least, rel=POLICIES[policy])


@pytest.mark.parametrize("mesh", CASES)
def test_what_is_reckoned_is_needed(mesh: str) -> None:
    setup, compiled = step(*MESHES[mesh])
    memory = training_memory(setup)
    reckoned = memory.gradients + memory.activations + memory.logits
    assert compiled.memory_analysis().temp_size_in_bytes >= reckoned


@pytest.mark.parametrize("mesh", CASES[:3])
def test_layers_send_what_was_planned(mesh: str) -> None:
    setup, compiled = step(*MESHES[mesh])
    planned = training_exchanges(setup, scatters=False)
    found = sum(
        (one.runs or 0) * one.bytes_moved
        for one in collectives(compiled, setup.layout.mesh)
        if "/while/" in one.op_name or "dot_general:dot_general" in one.op_name
    )
    assert planned.bytes_per_layer * planned.num_layers == pytest.approx(found, rel=0.02)

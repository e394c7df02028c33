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
    "context": ("ici_fsdp_parallelism=4", "ici_context_parallelism=2"),
    "tensor_sequence": ("ici_fsdp_parallelism=4", "ici_tensor_sequence_parallelism=2"),
    "data over the optimizer": (
        "ici_data_parallelism=4",
        "ici_fsdp_parallelism=2",
        "shard_optimizer_over_data=true",
    ),
}
CASES = [pytest.param(mesh, marks=() if mesh == "fsdp" else pytest.mark.slow) for mesh in MESHES]
# What a layer more costs is gradients and activations, whatever one layer needs while it runs.
LAYERS = {
    "minimal": ("data", "remat_policy=minimal"),
    "some of it": ("fsdp", "remat_policy=save_qkv_proj"),
    "nothing again": ("fsdp and tensor", "remat_policy=none"),
    "nothing again, bfloat16": ("fsdp", "remat_policy=none", "dtype=bfloat16"),
    "nothing again, more norms": (
        "data",
        "remat_policy=none",
        "decoder_block=qwen3",
        "use_qk_norm=true",
    ),
    "rows in parts": ("context",),
    "residual stream in parts": ("tensor_sequence", "remat_policy=minimal"),
}


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
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_takes_what_was_planned(name: str) -> None:
    mesh, *keys = LAYERS[name]
    planned, found = [], []
    for layers in (2, 6):
        setup, compiled = step(*MESHES[mesh], *keys, f"base_num_decoder_layers={layers}")
        memory = training_memory(setup)
        assert memory.activations is not None
        planned.append(memory.gradients + memory.activations)
        found.append(compiled.memory_analysis().temp_size_in_bytes)
    assert planned[1] - planned[0] == pytest.approx(found[1] - found[0], rel=0.02)


@pytest.mark.parametrize("mesh", CASES)
def test_what_is_reckoned_is_needed(mesh: str) -> None:
    setup, compiled = step(*MESHES[mesh])
    memory = training_memory(setup)
    assert compiled.memory_analysis().temp_size_in_bytes >= memory.total - memory.arguments


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

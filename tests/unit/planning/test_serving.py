"""What is planned of serving is what the engine's programs do."""

import functools
from collections import Counter
from typing import Any

import pytest
from jax.stages import Compiled

from maxtext.config.load import load
from maxtext.decoding.sampling import Mode
from maxtext.parallel.layout import Layout
from maxtext.parallel.program import collectives
from maxtext.planning.exchanges import Exchanges
from maxtext.planning.serving import EngineStep, ServingPlan, plan_serving
from tiny import T0
from tiny_engine import tiny_engine

GIB = 2**30
OWN = ("dtype=float32", "page_size=4", "max_num_seqs=8", "max_num_batched_tokens=64")
HEADS = ("base_num_query_heads=16",)
MESHES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "tensor": ((), {"ici_tensor_parallelism": 8}),
    "data and tensor": ((), {"ici_data_parallelism": 2, "ici_tensor_parallelism": 4}),
    "fsdp": ((), {"ici_fsdp_parallelism": 8}),
    "replicated": (
        HEADS,
        {"ici_tensor_parallelism": 8, "enable_dp_attention": True, "attn_dp_weights": "replicated"},
    ),
    "Q only": (
        HEADS,
        {"ici_tensor_parallelism": 8, "enable_dp_attention": True, "attn_dp_weights": "sharded"},
    ),
    "supergroups": (
        HEADS,
        {"ici_data_parallelism": 2, "ici_tensor_parallelism": 4, "enable_dp_attention": True},
    ),
    "supergroups, replicated": (
        HEADS,
        {
            "ici_data_parallelism": 2,
            "ici_tensor_parallelism": 4,
            "enable_dp_attention": True,
            "attn_dp_weights": "replicated",
        },
    ),
    "tensor_sequence": ((), {"ici_tensor_sequence_parallelism": 8}),
    "Q+K+V": (
        (*HEADS, "base_num_kv_heads=8"),
        {"ici_tensor_parallelism": 8, "ici_attn_dp_parallelism": 2, "attn_dp_weights": "sharded"},
    ),
}
FAST = ("tensor", "Q only")
CASES = [
    pytest.param(name, phase, marks=() if name in FAST and phase == "decode" else pytest.mark.slow)
    for name in MESHES
    for phase in ("decode", "prefill")
]
# Of a prompt, `replicated` gathers the tokens of a group twice.
SAME = [one for one in CASES if one.values[1] == "decode" or "replicated" not in str(one.values[0])]


@functools.cache
def planned(name: str) -> ServingPlan:
    argv, mesh = MESHES[name]
    given = {text.split("=", 1)[0]: text for text in (*T0, *OWN, *argv)}
    config = load(list(given.values()), {}).config
    mesh = {"ici_fsdp_parallelism": 1, **mesh}
    config = config.model_copy(update={"mesh": config.mesh.model_copy(update=mesh)})
    return plan_serving(config, num_devices=8, hbm_bytes=GIB, device=None)


@functools.cache
def compiled(name: str, phase: str) -> tuple[Compiled, Layout]:
    argv, mesh = MESHES[name]
    mesh = {"ici_fsdp_parallelism": 1, **mesh}
    engine, served = tiny_engine(*OWN, *argv, devices=8, **mesh)
    step: EngineStep = getattr(planned(name), phase)
    tokens, sequences = (count // planned(name).ranks for count in (step.tokens, step.sequences))
    shapes = engine._shapes.all()
    (shape,) = (one for one in shapes if (one.tokens, one.sequences) == (tokens, sequences))
    run: Any = engine._run(shape, Mode())
    return run, served.layout


def sent(exchanges: Exchanges) -> Counter:
    """Bytes of a step by kind and axes."""
    found: Counter = Counter()
    for times, listed in ((exchanges.num_layers, exchanges.layer), (1, exchanges.rest)):
        for one in listed:
            found[one.kind, tuple(sorted(one.axes))] += times * one.bytes_sent
    return found


@pytest.mark.parametrize(("name", "phase"), CASES)
def test_the_program_is_given_what_was_planned(name: str, phase: str) -> None:
    memory = compiled(name, phase)[0].memory_analysis()
    assert getattr(planned(name), phase).argument_bytes == memory.argument_size_in_bytes


@pytest.mark.parametrize(("name", "phase"), SAME)
def test_devices_send_each_other_what_was_planned(name: str, phase: str) -> None:
    run, layout = compiled(name, phase)
    found: Counter = Counter()
    for one in collectives(run, layout.mesh):
        found[one.kind, tuple(sorted(one.axes))] += (one.runs or 0) * one.bytes_moved
    assert sent(getattr(planned(name), phase).exchanges) == pytest.approx(found, rel=0.02)

"""What `debug_sharding=true` writes is what was asked for, and what came of it."""

import dataclasses
import json
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from maxtext.parallel.debug import ShardingLog, placed_weights
from maxtext.parallel.layout import Layout, constrain, exchange, use_layout
from tiny import ragged_batch, take_steps, tiny_setup
from tiny_engine import generate, prompts, request, tiny_engine


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    devices = jax.make_mesh((4, 2), ("groups", "model"), axis_types=(AxisType.Auto,) * 2)
    rules = {"tokens": ("groups",), "all": (), "few": ("model", "groups"), "many": ("model",)}
    return Layout(devices, rules, log=ShardingLog(tmp_path / "sharding"))


def written(folder: Path) -> dict:
    return json.loads((folder / "sharding.json").read_text())


def test_a_line_says_who_asked_and_json_what_came_of_it(layout: Layout, tmp_path: Path) -> None:
    def step(x: jax.Array) -> jax.Array:
        x = constrain(x, "tokens", None)
        return exchange(2 * x, ("all", "few"), ("tokens", "many"))

    with use_layout(layout):
        jax.jit(step).lower(jnp.ones((12, 16), jnp.bfloat16)).compile()
    assert layout.log is not None
    layout.log.write()
    lines = (tmp_path / "sharding" / "activations.txt").read_text().splitlines()
    line = step.__code__.co_firstlineno
    name = f"test_debug.py:{line + 1}] bfloat16[12,16]"
    assert lines[0] == f"{name:.<66} ('groups', None)."
    assert [one.partition(" (")[2] for one in lines[1:]] == [
        "None, ('model', 'groups')).",
        "'groups', 'model').",
    ]
    figures = written(tmp_path / "sharding")["activations"]
    assert [one["name"] for one in figures] == [f"test_debug.py:{line + n}" for n in (1, 2, 2)]
    assert all(one["got"] == one["asked"] for one in figures)
    assert [(one["bytes_per_device"], one["copies"]) for one in figures] == [
        (3 * 16 * 2, 2),
        (12 * 2 * 2, 1),
        (3 * 8 * 2, 1),
    ]
    assert [one["axes"] for one in figures] == [
        ["tokens", None],
        ["all", "few"],
        ["tokens", "many"],
    ]


def test_a_difference_is_a_warning_and_said_once(
    layout: Layout, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = layout.log
    assert isinstance(log, ShardingLog)
    asked = layout.sharding(("few",), (16,))
    weight = jax.ShapeDtypeStruct((16,), jnp.float32, sharding=asked)
    specs = {"scale": dataclasses.make_dataclass("Declared", ["axes"])(("few",))}
    log.held = placed_weights(specs, {"scale": weight}, layout=layout, apart=False)
    log.write()
    assert not caplog.messages
    log.held[0].found(NamedSharding(layout.mesh, PartitionSpec("model")))
    with caplog.at_level(logging.WARNING):
        log.write()
        log.write()
    assert caplog.messages == [
        "scale float32[16] lies ['model'] and was to lie [['model', 'groups']]"
    ]
    assert written(tmp_path / "sharding")["weights"][0]["got"] == ["model"]


def test_an_engine_writes_its_layers_one_by_one(tmp_path: Path) -> None:
    keys = ("debug_sharding=true", f"base_output_directory={tmp_path}", "run_name=served")
    mesh = {"enable_dp_attention": True, "attn_dp_weights": "sharded"}
    engine, _ = tiny_engine(*keys, "ici_tensor_parallelism=4", devices=4, **mesh)
    generate(engine, [request(prompts(3)[0], max_new_tokens=1)])
    figures = written(tmp_path / "served" / "sharding")
    weights = {one["name"]: one for one in figures["weights"]}
    query = weights["decoder/layers_1/self_attention/query/kernel"]
    assert query["got"] == query["asked"] == [None, ["model", "attn_dp"], None]
    assert (query["bytes_per_device"], query["copies"]) == (64 * 2 * 8 * 4, 1)
    key = weights["decoder/layers_1/self_attention/key/kernel"]
    assert (key["asked"], key["copies"]) == ([None, "model", None], 2)
    assert figures["activations"]
    assert all(one["got"] == one["asked"] for one in figures["activations"])
    assert "attentions.py:" in (tmp_path / "served" / "sharding" / "activations.txt").read_text()


@pytest.mark.parametrize(
    ("scan", "layer"),
    [("true", "layers"), pytest.param("false", "layers_1", marks=pytest.mark.slow)],
)
def test_a_training_run_writes_its_weights_as_it_holds_them(
    scan: str, layer: str, tmp_path: Path
) -> None:
    keys = ("debug_sharding=true", f"base_output_directory={tmp_path}", "run_name=trained")
    mesh = ("ici_fsdp_parallelism=4", "ici_tensor_parallelism=2", f"scan_layers={scan}")
    setup = tiny_setup(*keys, *mesh, devices=8)
    take_steps(setup, ragged_batch())
    assert setup.layout.log is not None
    setup.layout.log.write()
    figures = written(tmp_path / "trained" / "sharding")
    weights = {one["name"]: one for one in figures["weights"]}
    query = weights[f"decoder/{layer}/self_attention/query/kernel"]
    assert query["shape"] == [2, 64, 8, 8][scan == "false" :]
    assert query["got"] == query["asked"] == [None, "fsdp", "tensor", None][scan == "false" :]
    assert all(one["got"] == one["asked"] for one in figures["activations"])

"""The command of a known fault: fused projections that gave GQA as many KV heads as query heads.

While the model was computed so, the FLOPs that were reported stayed those of GQA. So the program is
read here: what it multiplies, what it sends, and what its products cost.
"""

import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from maxtext.config.load import load
from maxtext.parallel import program
from maxtext.parallel.hlo import HloArray, instructions
from maxtext.parallel.layout import use_layout
from maxtext.training.setup import make_setup
from maxtext.training.start import trace_step

ROOT = Path(__file__).parents[2]
COMMAND = """
    configs/base.yml model_name=llama3-70b override_model_config=true base_num_decoder_layers=4
    per_device_batch_size=1 max_target_length=8196 scan_layers=true steps=15 remat_policy=minimal
    use_iota_embed=true logits_dot_in_fp32=false enable_checkpointing=false dataset_type=synthetic
    max_segments_per_seq=32 ici_tensor_sequence_parallelism=4 fused_mlp=true fused_qkv=true
    run_name=test
"""
UNFUSED = ("fused_mlp=false", "fused_qkv=false")
SMALL = (
    "base_emb_dim=128",
    "base_mlp_dim=448",
    "head_dim=8",
    "vocab_size=512",
    "max_target_length=516",
)
# What four devices make of 64 query heads, 8 KV heads and four rows.
ROWS, QUERY_HEADS, KV_HEADS, LAYERS = 4, 16, 2, 4
GROUPS = QUERY_HEADS // KV_HEADS


@dataclasses.dataclass(frozen=True)
class Step:
    """A compiled step and the sizes of its model."""

    text: str
    length: int
    width: int
    head_dim: int

    @property
    def arrays(self) -> set[HloArray]:
        return {array for one in instructions(self.text) for array in one.arrays}

    @property
    def in_layers(self) -> list[program.Collective]:
        """What is sent once a layer."""
        mesh = Mesh(np.array(jax.devices()[:4]), ("tensor_sequence",))
        compiled: Any = SimpleNamespace(as_text=lambda: self.text)
        return [one for one in program.collectives(compiled, mesh) if one.runs == LAYERS]


def command(*more: str) -> list[str]:
    """The command with other values for some keys."""
    changed = {one.partition("=")[0]: one for one in more}
    return [changed.pop(one.partition("=")[0], one) for one in COMMAND.split()] + [
        *changed.values()
    ]


def trained(folder: Path, *more: str) -> str:
    """What the command prints on four devices."""
    flags = "--xla_force_host_platform_device_count=4"
    argv = command(f"base_output_directory={folder}", "log_config=false", *more)
    done = subprocess.run(
        [sys.executable, "-m", "maxtext.train", *argv],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def compiled_small(*more: str) -> tuple[Step, int]:
    """The step at a small width, compiled in this process, and FLOPs of its products."""
    argv = command(*SMALL, "jax_cache_dir=", *more)
    config = load([str(ROOT / argv[0]), *argv[1:]], {}).config
    setup = make_setup(config, jax.devices()[:4], backend="cpu")
    with use_layout(setup.layout):
        compiled = trace_step(setup).lower().compile()
    flops = program.flops(compiled)
    assert flops is not None
    return Step(compiled.as_text() or "", length=516, width=128, head_dim=8), flops


def assert_grouped(step: Step, dtype: str) -> None:
    """Attention sees the heads that the config asks for."""
    kinds = {heads: (ROWS, step.length, heads, step.head_dim) for heads in (QUERY_HEADS, KV_HEADS)}
    assert {HloArray(dtype, shape) for shape in kinds.values()} <= step.arrays
    # Nobody has the keys of a query head of its own, or heads of another device.
    heads = {
        array.shape[2]
        for array in step.arrays
        if len(array.shape) == 4
        and (array.shape[1], array.shape[3]) == (step.length, step.head_dim)
    }
    assert heads == {QUERY_HEADS, KV_HEADS}
    # Scores: the query heads of a KV head are multiplied with its keys as one matrix.
    products = {
        one.arrays[0].shape
        for one in instructions(step.text)
        if one.opcode == "dot" and len(one.arrays[0].shape) == 4
    }
    assert products
    assert {shape[:2] for shape in products} == {(ROWS, KV_HEADS)}
    assert {math.gcd(shape[2], GROUPS) for shape in products if shape[3] != step.head_dim} == {
        GROUPS
    }


def assert_local_split(step: Step) -> None:
    """Between a projection and its parts nothing is sent: only the residual stream ever is."""
    sent = {array.shape for one in step.in_layers for array in one.arrays}
    assert sent == {(ROWS, step.length, step.width), (step.width,)}


@pytest.mark.parametrize("fusion", [(), UNFUSED], ids=["fused", "unfused"])
def test_each_device_has_its_groups_of_heads_and_splits_them_alone(fusion: tuple[str, ...]) -> None:
    step, _ = compiled_small(*fusion)
    assert_grouped(step, "f32")
    assert_local_split(step)


def test_fusing_costs_no_flops_and_joins_what_is_sent() -> None:
    fused, flops = compiled_small()
    unfused, flops_unfused = compiled_small(*UNFUSED)
    assert flops == flops_unfused
    # The gradients of a layer's input come from one product rather than three or two, so one array
    # is summed over devices.
    arrays = [sum(len(one.arrays) for one in step.in_layers) for step in (fused, unfused)]
    assert arrays[0] < arrays[1]


@pytest.mark.slow
def test_the_whole_command_compiles_at_full_size(tmp_path: Path) -> None:
    reports = []
    for name, fusion in (("fused", ()), ("unfused", UNFUSED)):
        more = ("compile_only=true", "dtype=bfloat16", *fusion)
        out = trained(tmp_path / name, *more)
        assert "5,523,972,096 parameters" in out
        folder = tmp_path / name / "test" / "compiled"
        text = (folder / "train_step.hlo.txt").read_text()
        step = Step(text, length=8196, width=8192, head_dim=128)
        assert_grouped(step, "bf16")
        assert_local_split(step)
        reports.append(json.loads((folder / "program.json").read_text()))
    fused, unfused = reports
    assert fused["model_flops"] == unfused["model_flops"]
    assert fused["product_flops"] == unfused["product_flops"]


@pytest.mark.slow
def test_the_whole_command_runs_at_a_small_width(tmp_path: Path) -> None:
    logged = []
    for name, fusion in (("fused", ()), ("unfused", UNFUSED)):
        metrics = tmp_path / f"{name}.jsonl"
        out = trained(tmp_path / name, *SMALL, f"metrics_file={metrics}", *fusion)
        assert "completed step: 14" in out
        logged.append([json.loads(line) for line in metrics.read_text().splitlines()])
    for fused, unfused in zip(*logged, strict=True):
        if "loss" in fused:
            assert fused["loss"] == pytest.approx(unfused["loss"], rel=1e-5)
            assert fused["grad_norm"] == pytest.approx(unfused["grad_norm"], rel=1e-4)

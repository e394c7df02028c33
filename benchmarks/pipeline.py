"""Pipelines: bubbles, collectives and memory against the number of microbatches.

    python benchmarks/pipeline.py [--stages 2 4] [--repeats 1 2] [--microbatches 1 2 4] [--steps 8]

One JSON line a result; microbatches are counted in stages. They are of one size, so the batch grows
with them. A step costs a part that grows with them, and one that does not: the bubble. `bubble` is
(stages - 1) / (repeats * microbatches + stages - 1), `bubble_of_products` the part of the matrix
products of a compiled step that does not grow, `bubble_measured` that of its time. The head grows
and has no bubble, so both may be a little less.
`temporary_bytes` is what a device needs while a step runs, beside weights, optimizer and batch, and
`bytes_a_microbatch` what each microbatch adds to that, of which `bytes_of_input` is one stage's
input. `collectives` are of one step: how often, and the bytes that a device sends.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

MODEL = [
    "base_emb_dim=128",
    "base_num_query_heads=4",
    "base_num_kv_heads=2",
    "head_dim=32",
    "base_mlp_dim=512",
    "vocab_size=256",
    "max_target_length=128",
    "dtype=float32",
    "log_config=false",
    "ici_fsdp_parallelism=1",
]
ROWS, INPUT_BYTES = 2, 2 * 128 * 128 * 4


def measure(stages: int, repeats: int, microbatches: int, steps: int) -> dict[str, object]:
    """Time, products, memory and collectives of a training step."""
    import jax
    import numpy as np
    from train_step import synthetic_batch

    from maxtext.config.load import load
    from maxtext.parallel.layout import use_layout
    from maxtext.parallel.program import collectives, flops, memory, totals
    from maxtext.training.setup import prepare
    from maxtext.training.start import compile_step, trace_step
    from maxtext.training.state import fresh_state

    keys = {
        "ici_pipeline_parallelism": stages,
        "base_num_decoder_layers": stages * repeats,
        "num_pipeline_microbatches": microbatches,
        "per_device_batch_size": ROWS * microbatches / stages,
    }
    setup = prepare(load([*MODEL, *(f"{key}={one}" for key, one in keys.items())], {}).config)
    seconds: list[float] = []
    with use_layout(setup.layout):
        step = compile_step(trace_step(setup))
        state = fresh_state(setup.specs, setup.optimizer, setup.abstract, seed=0)
        batch = synthetic_batch(setup)
        for _ in range(steps + 1):
            began = time.perf_counter()
            state, metrics = step(state, batch, np.float32(1e-3))
            jax.block_until_ready(metrics)
            seconds.append(time.perf_counter() - began)
    found = totals(collectives(step, setup.layout.mesh))
    used = memory(step)
    return {
        "step_seconds": min(seconds[1:]),
        "products": flops(step),
        "temporary_bytes": None if used is None else used.temporaries,
        "collectives": {" ".join((kind, *axes)): sums for (kind, axes), sums in found.items()},
    }


def report(stages: int, repeats: int, counts: list[int], steps: int) -> None:
    """Prints a line for each number of microbatches."""
    cases = {stages * count: measure(stages, repeats, stages * count, steps) for count in counts}
    few, many = min(cases), max(cases)
    growth = {
        name: (cases[many][name] - cases[few][name]) / (many - few)
        for name in ("step_seconds", "products", "temporary_bytes")
    }
    for count, one in cases.items():
        bubble = (stages - 1) / (repeats * count + stages - 1)
        parts = {name: 1 - growth[name] * count / one[name] for name in growth}
        line = {
            "benchmark": "pipeline",
            "stages": stages,
            "repeats": repeats,
            "microbatches": count,
            "bubble": round(bubble, 3),
            "bubble_of_products": round(parts["products"], 3),
            "bubble_measured": round(parts["step_seconds"], 3),
            "step_seconds": round(one["step_seconds"], 4),
            "temporary_bytes": one["temporary_bytes"],
            "bytes_a_microbatch": round(growth["temporary_bytes"]),
            "bytes_of_input": INPUT_BYTES,
            "collectives": one["collectives"],
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    """Prints one JSON line a result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--repeats", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--microbatches", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=8, help="after the first; the fastest counts")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        report(*options.stages, *options.repeats, options.microbatches, options.steps)
        return
    for stages, repeats in itertools.product(options.stages, options.repeats):
        flags = f"--xla_force_host_platform_device_count={stages}"
        environ = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        counts = map(str, options.microbatches)
        here = ["--stages", str(stages), "--repeats", str(repeats), "--steps", str(options.steps)]
        command = [sys.executable, str(Path(__file__)), "--here", *here, "--microbatches", *counts]
        subprocess.run(command, env=environ, check=True)


if __name__ == "__main__":
    main()

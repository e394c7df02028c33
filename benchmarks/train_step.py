"""Training speed: tokens and model FLOPs a second, against the matmul rate of the same process.

    python benchmarks/train_step.py [--models t0 20m 110m] [--devices 1 8] [--steps 8]
    python benchmarks/train_step.py --sweep [layers length vocabulary devices] [--steps 4]

One JSON line a result. `matmul_gflops` is the rate of a float32 product of two 2048 x 2048
matrices, measured between the steps that it is compared with, so that other work on the machine
slows both. Start-up is the wall time from process start to the line of step 0, T0 with a warm
compilation cache.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from environment import cpu_environ

COMMON = ["dataset_type=synthetic", "dtype=float32", "remat_policy=none", "log_config=false"]
MODELS = {
    "t0": [
        "base_num_decoder_layers=2 base_emb_dim=64 base_num_query_heads=8 base_num_kv_heads=2",
        "head_dim=8 base_mlp_dim=128 vocab_size=256 max_target_length=32",
    ],
    "6m": [
        "base_num_decoder_layers=4 base_emb_dim=256 base_num_query_heads=8 base_num_kv_heads=2",
        "head_dim=32 base_mlp_dim=1024 vocab_size=4096 max_target_length=256",
    ],
    "20m": [
        "base_num_decoder_layers=4 base_emb_dim=256 base_num_query_heads=8 base_num_kv_heads=2",
        "head_dim=32 base_mlp_dim=1024 vocab_size=32000 max_target_length=256",
    ],
    "110m": [
        "base_num_decoder_layers=12 base_emb_dim=768 base_num_query_heads=12",
        "base_num_kv_heads=4 head_dim=64 base_mlp_dim=2304 vocab_size=32000",
        "logits_via_embedding=true max_target_length=256",
    ],
}
# How the step grows: each changes one thing of this model, at the same tokens a step.
SWEPT = "6m"
SWEEPS = {
    "layers": {n: {"base_num_decoder_layers": n} for n in (2, 4, 8, 16)},
    "length": {n: {"max_target_length": n} for n in (128, 256, 512, 1024)},
    "vocabulary": {n: {"vocab_size": n} for n in (1024, 4096, 16384, 65536)},
    "devices": {n: {} for n in (1, 2, 4, 8)},
}
DEFAULT_MODELS = ("t0", "20m", "110m")
ROWS = 8
MATMUL_SIZE = 2048
# Taken between two steps, of which the fastest counts: threads of the step still spin at first.
PRODUCTS = 3


def model_keys(model: str, devices: int, changes: Mapping[str, object] | None = None) -> list[str]:
    """The command line of a model with changes, at the tokens of `ROWS` of its own rows a step."""
    words = " ".join(MODELS[model]).split()
    settings = dict(word.split("=", 1) for word in words)
    tokens = ROWS * int(settings["max_target_length"])
    settings |= {key: str(value) for key, value in (changes or {}).items()}
    rows = tokens / int(settings["max_target_length"])
    settings["per_device_batch_size"] = str(rows / devices)
    return [*COMMON, *(f"{key}={value}" for key, value in settings.items())]


def measure(
    model: str, devices: int, steps: int, changes: Mapping[str, object]
) -> dict[str, object]:
    """Runs the training step in this process."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from maxtext.config.load import load
    from maxtext.parallel.layout import use_layout
    from maxtext.parallel.params import count_params
    from maxtext.training.setup import prepare
    from maxtext.training.start import compile_step, trace_step, workload
    from maxtext.training.state import fresh_state

    argv = [*model_keys(model, devices, changes), "enable_checkpointing=false"]
    setup = prepare(load(argv, {}).config)
    rows, length = setup.batch_shape
    flops = workload(setup).flops_per_device * devices
    square = jnp.ones((MATMUL_SIZE, MATMUL_SIZE), jnp.float32)
    matmul = jax.jit(jnp.matmul).lower(square, square).compile()
    jax.block_until_ready(matmul(square, square))

    def product() -> float:
        began = time.perf_counter()
        jax.block_until_ready(matmul(square, square))
        return time.perf_counter() - began

    rates: list[float] = []
    seconds: list[float] = []
    with use_layout(setup.layout):
        began = time.perf_counter()
        step = compile_step(trace_step(setup))
        compile_seconds = time.perf_counter() - began
        state = fresh_state(setup.specs, setup.optimizer, setup.abstract, seed=0)
        batch = synthetic_batch(setup)
        for _ in range(steps + 1):
            rates.append(2 * MATMUL_SIZE**3 / min(product() for _ in range(PRODUCTS)))
            began = time.perf_counter()
            state, metrics = step(state, batch, np.float32(1e-3))
            jax.block_until_ready(metrics)
            seconds.append(time.perf_counter() - began)
    step_seconds, rate = statistics.median(seconds[1:]), statistics.median(rates[1:])
    return {
        "benchmark": "train_step",
        "model": model,
        "devices": devices,
        "parameters": count_params(setup.specs),
        "tokens_per_step": rows * length,
        "step_seconds": round(step_seconds, 4),
        "fastest_step_seconds": round(min(seconds[1:]), 4),
        "tokens_per_second": round(rows * length / step_seconds),
        "model_gflops": round(flops / step_seconds / 1e9, 1),
        "matmul_gflops": round(rate / 1e9, 1),
        "ratio": round(flops / step_seconds / rate, 3),
        "fastest_ratio": round(flops / min(seconds[1:]) / max(rates), 3),
        "compile_seconds": round(compile_seconds, 1),
        "peak_rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def synthetic_batch(setup):  # noqa: ANN001, ANN201 - Setup is imported with jax
    """Random tokens on the devices."""
    from maxtext.data.batch import Shard
    from maxtext.data.iterators import make_train_iterator
    from maxtext.training.setup import place

    rows, _ = setup.batch_shape
    batch = next(
        make_train_iterator(
            setup.config.data,
            rows=rows,
            shard=Shard(process_index=0, process_count=1),
            vocab_size=setup.config.model.vocab_size,
        )
    )
    sharding = setup.batch_sharding(setup.batch_shape)
    return place(batch, sharding=sharding, shape=setup.batch_shape)


def measure_start() -> dict[str, object]:
    """Wall time of `python -m maxtext.train` to the line of step 0, the second time."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [*model_keys("t0", 1), "steps=1", f"base_output_directory={folder}"]
        argv += [f"jax_cache_dir={folder}/cache", "run_name=start", "enable_checkpointing=false"]
        for _ in range(2):
            began = time.perf_counter()
            command = [sys.executable, "-m", "maxtext.train", *argv]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith("completed step: 0"):
                        seconds = time.perf_counter() - began
    return {"benchmark": "start_up", "model": "t0", "seconds_to_step_0": round(seconds, 2)}


def measure_apart(
    model: str, devices: int, steps: int, changes: Mapping[str, object] | None = None
) -> dict[str, object]:
    """`measure` in a process of its own with that many virtual CPU devices."""
    environ = cpu_environ(devices=devices)
    here = [model, str(devices), str(steps), json.dumps(changes or {})]
    command = [sys.executable, str(Path(__file__)), "--here", *here]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def sweep(name: str, steps: int) -> None:
    """Prints a line for each value of a sweep: what was measured, and the step's growth."""
    first = None
    for value, changes in SWEEPS[name].items():
        devices = value if name == "devices" else 1
        measured = measure_apart(SWEPT, devices, steps, changes)
        first = first or measured["step_seconds"]
        growth = round(measured["step_seconds"] / first, 2)
        line = measured | {"sweep": name, "value": value, "step_seconds_over_first": growth}
        print(json.dumps(line), flush=True)


def main() -> None:
    """Prints one JSON line a result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(DEFAULT_MODELS))
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--sweep", nargs="*", choices=SWEEPS, help="none named: all of them")
    parser.add_argument("--steps", type=int, help="after the first; 8, of a sweep 4")
    parser.add_argument("--here", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        model, devices, steps, changes = options.here
        print(json.dumps(measure(model, int(devices), int(steps), json.loads(changes))))
        return
    if options.sweep is not None:
        for name in options.sweep or SWEEPS:
            sweep(name, options.steps or 4)
        return
    print(json.dumps(measure_start()), flush=True)
    for model in options.models:
        for devices in options.devices:
            print(json.dumps(measure_apart(model, devices, options.steps or 8)), flush=True)


if __name__ == "__main__":
    main()

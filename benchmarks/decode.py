"""Decoding speed: tokens a second and time to the first token, against the memory's speed.

    python benchmarks/decode.py [--models 20m 110m smollm2] [--requests 1 4 16 64] [--new 128]

One JSON line a result. `limit` is the tokens a second that reading all weights and the cache once
a step allows, at `memory_gb_per_second`, the rate at which the same process reads an array that is
larger than all caches of the processor, adding it up or multiplying it by a vector, whichever is
faster; `ratio` is the part of it that was reached. Start-up is
the wall time from process start to the first token of `python -m maxtext.decode`, with a warm
compilation cache.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import cpu_environ
from train_step import MODELS as TRAINED

MODELS = {
    "20m": TRAINED["20m"],
    "110m": TRAINED["110m"],
    "smollm2": [
        "base_num_decoder_layers=30 base_emb_dim=576 base_num_query_heads=9 base_num_kv_heads=3",
        "head_dim=64 base_mlp_dim=1536 vocab_size=49152 logits_via_embedding=true",
        "rope_max_timescale=100000 max_target_length=256",
    ],
}
BANDWIDTH_BYTES = 2**28
PROMPT = 16


def model_keys(model: str) -> list[str]:
    """The command line of a model."""
    return ["dtype=float32", "log_config=false", *" ".join(MODELS[model]).split()]


def bandwidth() -> float:
    """Bytes a second that this process reads from memory, at the best of a few tries."""
    import jax
    import jax.numpy as jnp

    large = jnp.ones((4096, BANDWIDTH_BYTES // 4 // 4096), jnp.float32)
    vector = jnp.ones(large.shape[0], jnp.float32)
    ways = (lambda large, _: jnp.sum(large, axis=1), lambda large, vector: vector @ large)
    seconds = []
    for way in ways:
        read = jax.jit(way).lower(large, vector).compile()
        for _ in range(6):
            began = time.perf_counter()
            jax.block_until_ready(read(large, vector))
            seconds.append(time.perf_counter() - began)
    return BANDWIDTH_BYTES / min(seconds)


def measure(model: str, counts: list[int], new: int) -> None:
    """Prints a line for each number of requests at once."""
    import jax

    from maxtext.config.load import load
    from maxtext.decoding.load import make_engine, prepare
    from maxtext.parallel.params import initialize, shardings

    argv = [*model_keys(model), f"max_num_seqs={max(counts)}", "enable_prefix_caching=false"]
    served = prepare(load(argv, {}).config)
    draw = jax.jit(
        lambda: initialize(served.specs, jax.random.key(0)),
        out_shardings=shardings(served.specs, served.layout),
    )
    engine = make_engine(served, draw())
    for count in counts:
        run(engine, count, 4)
        rate = bandwidth()
        found = run(engine, count, new)
        rate = max(rate, bandwidth())
        config = served.config.model
        per_token = 8 * config.num_decoder_layers * config.num_kv_heads * config.head_dim
        read = engine.num_weight_bytes + count * per_token * (PROMPT + new / 2)
        limit = count * rate / read
        print(
            json.dumps(
                {
                    "benchmark": "decode",
                    "model": model,
                    "requests": count,
                    "new_tokens": new,
                    **found,
                    "megabytes_per_step": round(read / 1e6, 1),
                    "memory_gb_per_second": round(rate / 1e9, 1),
                    "limit": round(limit, 1),
                    "ratio": round(found["tokens_per_second"] / limit, 3),
                }
            ),
            flush=True,
        )


def run(engine, count: int, new: int) -> dict[str, float]:  # noqa: ANN001 - imported with jax
    """Rates of `count` requests at once."""
    from maxtext.decoding.requests import Request, Sampling

    sampling = Sampling(max_new_tokens=new)
    for place in range(count):
        engine.add(Request(tuple(range(place, place + PROMPT)), sampling))
    began = time.perf_counter()
    first = None
    seconds, left = [], count
    while left:
        at = time.perf_counter()
        events = engine.step()
        seconds.append(time.perf_counter() - at)
        first = first or time.perf_counter() - began
        left -= sum(event.finish_reason is not None for event in events)
    # The steps in which all requests get one token each.
    steady = sorted(seconds[-new + 1 :])
    median = statistics.median(steady)
    return {
        "tokens_per_second": round(count / median, 1),
        "step_milliseconds": round(1000 * median, 3),
        "fastest_step_milliseconds": round(1000 * steady[0], 3),
        "first_token_milliseconds": round(1000 * first, 2),
    }


def measure_start(model: str) -> dict[str, object]:
    """Wall time of `python -m maxtext.decode` to its first token, the second time."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [f"base_output_directory={folder}", f"jax_cache_dir={folder}/cache", "run_name=run"]
        argv += model_keys(model)
        train = [*argv, "steps=1", "dataset_type=synthetic", "per_device_batch_size=1"]
        command = [sys.executable, "-m", "maxtext.train", *train]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        seconds = 0.0
        for _ in range(2):
            began = time.perf_counter()
            command = [sys.executable, "-m", "maxtext.decode", *argv, "prompt=0123456789abcde"]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.read(16)
                seconds = time.perf_counter() - began
                process.stdout.read()
    return {
        "benchmark": "decode_start",
        "model": model,
        "seconds_to_first_token": round(seconds, 2),
    }


def measure_apart(model: str, counts: list[int], new: int) -> None:
    """`measure` in a process of its own."""
    command = [sys.executable, str(Path(__file__)), "--here", "--models", model]
    command += ["--requests", *map(str, counts), "--new", str(new)]
    subprocess.run(command, env=cpu_environ(), check=True)


def main() -> None:
    """Prints one JSON line a result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        measure(options.models[0], options.requests, options.new)
        return
    print(json.dumps(measure_start("20m")), flush=True)
    for model in options.models:
        measure_apart(model, options.requests, options.new)


if __name__ == "__main__":
    main()

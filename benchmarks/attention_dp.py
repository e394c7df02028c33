"""Attention data parallelism against plain tensor parallelism, which repeats key and value heads.

    python benchmarks/attention_dp.py [--requests 64] [--new 32]

One JSON line a result, on virtual CPU devices. `served`: eight devices, caches of equal bytes a
device; how many sequences they hold, tokens a second over all requests, and how long a step takes
that decodes all that fit. `moved`: bytes that a device sends in such a step, by kind and by mesh
axes. `held`: from shapes alone, bytes a device of released models in bfloat16; a token's cache is
that of all devices, divided by their number.
"""

import argparse
import json
import math
import os
import statistics
import time

DEVICES, TENSOR = 64, 8
PAGE, PROMPT = 16, 32
# Pages of a device in its own right: four sequences of PROMPT + new tokens.
SEQUENCES = 4
MODEL = (
    "base_emb_dim=256 base_num_query_heads=16 base_num_kv_heads=2 head_dim=32 base_mlp_dim=768 "
    "base_num_decoder_layers=2 vocab_size=256 dtype=float32 log_config=false"
)
KINDS = {
    "tensor": {},
    "replicated": {"enable_dp_attention": True, "attn_dp_weights": "replicated"},
    "sharded": {"enable_dp_attention": True, "attn_dp_weights": "sharded"},
}
# What the cases of the Neuron page are about: 64 or 32 query heads, 8 key and value heads. Name,
# model file, tensor, groups (-1: derived), copies.
HELD = [
    ("neuron TP 8 DP 8", "llama3.1-70b", 64, 8, 1),
    ("neuron TP 8 DP 8, attention_dp 4", "llama3.1-70b", 32, 4, 2),
    ("neuron TP 2 DP 4", "llama3.1-8b", 8, 4, 1),
    ("neuron TP 8 DP 1", "llama3.1-70b", 8, 1, 1),
    ("llama3.1-8b", "llama3.1-8b", 16, -1, 1),
    ("llama3.1-8b", "llama3.1-8b", 32, -1, 1),
    ("llama3.1-70b", "llama3.1-70b", 16, -1, 1),
    ("llama3.1-70b", "llama3.1-70b", 64, -1, 1),
]


def served(kind: str, requests: int, new: int) -> None:
    """Serves all requests with caches that take the same bytes of each device."""
    import dataclasses

    import jax

    from maxtext.config.load import load
    from maxtext.decoding.load import make_engine, prepare
    from maxtext.decoding.requests import Request, Sampling
    from maxtext.parallel.params import initialize, shardings
    from maxtext.parallel.program import collectives, totals
    from maxtext.parallel.serving import serving_layout

    pages_each = SEQUENCES * -(-(PROMPT + new) // PAGE)
    config = load([*MODEL.split(), "enable_prefix_caching=false", f"page_size={PAGE}"], {}).config
    asked = {"ici_tensor_parallelism": TENSOR, "ici_fsdp_parallelism": 1, **KINDS[kind]}
    mesh = config.mesh.model_copy(update=asked)
    layout = serving_layout(mesh, config.model, jax.devices()[:TENSOR])
    ranks = layout.ways("pages")
    limits = {"num_pages": pages_each * ranks, "max_num_seqs": SEQUENCES * ranks}
    limits["max_num_batched_tokens"] = 4 * PROMPT
    config = config.model_copy(update={"decode": config.decode.model_copy(update=limits)})
    base = prepare(config.model_copy(update={"mesh": load(MODEL.split(), {}).config.mesh}))
    ready = dataclasses.replace(base, config=config, layout=layout)
    draw = jax.jit(
        lambda: initialize(ready.specs, jax.random.key(0)),
        out_shardings=shardings(ready.specs, layout),
    )
    engine = make_engine(ready, draw())
    # Twice: the first time compiles the steps that come up.
    for _ in range(2):
        for number in range(requests):
            tokens = tuple((number + 7 * place) % 250 for place in range(PROMPT))
            engine.add(Request(tokens, Sampling(max_new_tokens=new, ignore_eos=True)))
        began, seconds, held = time.perf_counter(), [0.0], 0
        while engine.num_running or engine.num_waiting:
            at = time.perf_counter()
            events = engine.step()
            held = max(held, engine.num_running)
            if len(events) == SEQUENCES * ranks:
                seconds.append(time.perf_counter() - at)
        rate = requests * new / (time.perf_counter() - began)
    most = max((shape for shape, _ in engine.programs), key=lambda one: one.sequences)
    head = {"benchmark": "attention_dp", "weights": kind, "devices": TENSOR, "groups": ranks}
    figures = {
        "cache_bytes_per_device": pages_each * PAGE * 2 * 32 * 4 * 2,
        "sequences_held": held,
        "tokens_per_second": round(rate, 1),
        "step_milliseconds": round(1000 * statistics.median(seconds), 2),
    }
    print(json.dumps({**head, "result": "served", **figures}), flush=True)
    program = next(
        made
        for (shape, _), made in engine.programs.items()
        if shape.tokens == shape.sequences == most.sequences
    )
    for (what, axes), (count, moved) in totals(collectives(program, layout.mesh)).items():
        line = {"kind": what, "axes": axes, "count": count, "bytes": moved}
        print(json.dumps({**head, "result": "moved", **line}), flush=True)


def held(case: tuple[str, str, int, int, int], kind: str) -> None:
    """Bytes a device of a released model."""
    import jax

    from maxtext.config.load import load
    from maxtext.decoding.load import abstract_params
    from maxtext.layers.paged import cached_heads
    from maxtext.models.registry import architecture
    from maxtext.parallel.params import named_leaves
    from maxtext.parallel.serving import serving_layout

    name, model_name, tensor, groups, copies = case
    config = load([f"model_name={model_name}", "ici_fsdp_parallelism=1"], {}).config
    asked = {"ici_tensor_parallelism": tensor, "ici_data_parallelism": copies, **KINDS[kind]}
    if kind != "tensor":
        asked["ici_attn_dp_parallelism"] = groups
    mesh = config.mesh.model_copy(update=asked)
    layout = serving_layout(mesh, config.model, jax.devices()[: tensor * copies])
    model = architecture(config.model, weight_dtype="bfloat16")
    sums = {"query_out": 0, "key_value": 0, "other": 0}
    for path, leaf in named_leaves(abstract_params(model, layout, dtype="bfloat16")).items():
        parts = path.split("/")
        key = "other"
        if "self_attention" in parts:
            key = "query_out" if {"query", "out"} & set(parts) else "key_value"
        sums[key] += 2 * math.prod(leaf.sharding.shard_shape(leaf.shape))
    heads = cached_heads(layout, config.model.num_kv_heads)
    per_token = heads * 2 * config.model.head_dim * 2 * config.model.num_decoder_layers
    line = {
        "benchmark": "attention_dp",
        "result": "held",
        "case": name,
        "tensor": tensor,
        "copies": copies,
        "weights": kind,
        "groups": layout.mesh.shape.get("attn_dp", 1),
        "heads_per_device": config.model.num_query_heads // layout.ways("heads"),
        "cache_heads_per_device": heads // layout.ways("cache_heads"),
        **{f"{key}_bytes_per_device": size for key, size in sums.items()},
        "cache_bytes_per_token_per_device": per_token / tensor,
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    """Prints one JSON line a result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--new", type=int, default=32)
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    from maxtext.parallel.distributed import set_up_virtual_devices

    set_up_virtual_devices()
    for kind in KINDS:
        served(kind, options.requests, options.new)
    for case in HELD:
        for kind in KINDS:
            held(case, kind)


if __name__ == "__main__":
    main()

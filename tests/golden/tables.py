"""The tables that this folder keeps; `python tests/golden/tables.py` (`make golden`) rewrites them.

Each is made from shapes alone. A change of one is a change that users see: of how weights lie on
devices, or of what checkpoints hold.
"""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parent
MESHES = {
    "fsdp": (),
    "tensor": ("ici_fsdp_parallelism=1", "ici_tensor_parallelism=-1"),
    "hsdp_tensor": (
        "ici_data_parallelism=2",
        "ici_fsdp_parallelism=2",
        "ici_tensor_parallelism=2",
    ),
}
MODELS = ("llama3.1-8b", "qwen3-0.6b")
# With biases, and five query heads a KV head.
FUSED = "qwen2.5-14b"


def sharding_table(model: str, *more: str) -> str:
    """Each weight of a model: shape, and how each mesh splits it."""
    import jax

    from maxtext.config.load import load
    from maxtext.models.decoder import model_params
    from maxtext.models.fusion import fusion_from_config
    from maxtext.models.registry import architecture
    from maxtext.parallel.mesh import make_layout
    from maxtext.parallel.params import abstract, named_leaves

    lines = [f"# {' '.join((model, *more))} on eight devices"]
    for mesh, keys in MESHES.items():
        config = load((f"model_name={model}", *keys, *more), {}).config
        specs = model_params(architecture(config.model, weight_dtype="float32"))
        specs = fusion_from_config(config.compute).specs(specs)
        layout = make_layout(config.mesh, jax.devices())
        lines.append(f"{mesh}: {' '.join(keys) or 'the default mesh'}")
        for name, leaf in named_leaves(abstract(specs, layout)).items():
            kind = f"{leaf.dtype}{list(leaf.shape)}"
            lines.append(f"  {name:<64} {kind:<32} {tuple(leaf.sharding.spec)}")
    return "\n".join(lines) + "\n"


def checkpoint_table() -> str:
    """Each array that a checkpoint of the default model holds."""
    from maxtext.config.load import load
    from maxtext.parallel.params import named_leaves
    from maxtext.training.setup import prepare

    leaves = named_leaves(prepare(load(("jax_cache_dir=",), {}).config).abstract)
    rows = [f"{name:<72} {leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves.items()]
    return "\n".join(rows) + "\n"


# Attention data parallelism: the cases of the Neuron documentation in our keys, then two models on
# three machines of eight devices, with their heads split by tensor alone and with four groups.
_NEURON = {
    "TP 8, DP 8, full": ("llama3.1-70b", 64, 1, 8, "sharded"),
    "TP 8, DP 8, attention_dp 4": ("llama3.1-70b", 32, 2, 4, "sharded"),
    "TP 2, DP 4, full": ("llama3.1-8b", 8, 1, 4, "sharded"),
    "TP 8, DP 1": ("llama3.1-70b", 8, 1, 1, "auto"),
}
_MACHINES = ("v5e", "v5p", "h200")
_WEIGHTS = {"tensor": (1, "auto"), "replicated": (4, "replicated"), "sharded": (4, "sharded")}


def _plan_keys(model: str, tensor: int, data: int, groups: int, weights: str) -> tuple[str, ...]:
    keys = ("max_target_length=8192", "max_num_seqs=64", "kv_cache_memory_fraction=0.9")
    mesh = (f"ici_tensor_parallelism={tensor}", f"ici_data_parallelism={data}")
    split = (f"ici_attn_dp_parallelism={groups}",)
    shared = (f"attn_dp_weights={weights}",) if groups > 1 else ()
    return (f"model_name={model}", *keys, *mesh, "ici_fsdp_parallelism=1", *split, *shared)


def _plan(*argv: str):
    from maxtext.config.load import load
    from maxtext.planning.answer import make_plan

    return make_plan(load(argv, {}, shapes_only=True).config)


def plan_table() -> str:
    """What serving does in each case, a line each."""
    cases = {
        f"{name}, v5p": (*_plan_keys(*case), "plan_device=v5p") for name, case in _NEURON.items()
    }
    for model in ("llama3.1-8b", "llama3.1-70b"):
        for device in _MACHINES:
            for name, (groups, weights) in _WEIGHTS.items():
                keys = (*_plan_keys(model, 8, 1, groups, weights), f"plan_device={device}")
                cases[f"{model} on 8 {device}, {name}"] = keys
    rows = [_plan_row(name, _plan(*keys)) for name, keys in cases.items()]
    widths = [
        max(len(row[place]) for row in (_PLAN_COLUMNS, *rows)) for place in range(len(rows[0]))
    ]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (_PLAN_COLUMNS, *rows)
    ]
    return "\n".join(lines) + "\n"


_PLAN_COLUMNS = (
    "sequences of 8192 tokens",
    "mesh",
    "variant",
    "weights GiB",
    "Q, O copies",
    "q / attending / kv / cached heads",
    "cache B a token",
    "fit",
    "decode KiB a layer",
    "prefill KiB a layer",
    "step ms",
    "tokens/s",
    "instead",
)


def _plan_row(name: str, plan) -> tuple[str, ...]:
    serving = plan.serving
    copies = next(group.copies for group in serving.weights if "query" in group.name)
    heads = serving.heads
    steps = [
        f"{step.exchanges.bytes_per_layer / 2**10:.4g}" if step else "-"
        for step in (serving.decode, serving.prefill)
    ]
    decode = serving.decode
    times = ["-", "-"]
    if decode is not None:
        seconds = decode.seconds.step
        times = [f"{seconds * 1e3:.4g}", f"{decode.tokens / seconds:.4g}"]
    return (
        name,
        " x ".join(f"{axis} {size}" for axis, size in serving.mesh.items()),
        plan.attention.variant,
        f"{serving.weight_bytes / 2**30:.4g}",
        f"{copies:g}",
        f"{heads.projected} / {heads.attending} / {heads.kv} / {heads.cached}",
        f"{serving.cache_bytes_per_token:g}",
        f"{serving.fit.sequences}",
        *steps,
        *times,
        "; ".join(plan.instead.get("serving", ())),
    )


def whole_plan() -> str:
    """All that is said of one config."""
    from maxtext.planning.table import table

    return table(_plan(*_plan_keys("llama3.1-8b", 8, 1, 4, "sharded"), "plan_device=v5e"))


def plan_picture(model: str, tensor: int, data: int, groups: int, weights: str) -> str:
    """The devices of one case."""
    from maxtext.planning.picture import draw

    return draw(_plan(*_plan_keys(model, tensor, data, groups, weights), "plan_device=v5p"))


_PICTURES = {
    "neuron_tp8_dp8_full": _NEURON["TP 8, DP 8, full"],
    "neuron_tp8_dp8_attention_dp4": _NEURON["TP 8, DP 8, attention_dp 4"],
    "neuron_tp2_dp4_full": _NEURON["TP 2, DP 4, full"],
    "neuron_tp8_dp1": _NEURON["TP 8, DP 1"],
    **{
        f"{model}_{name}": (model, 8, 1, *how)
        for model in ("llama3.1-8b", "llama3.1-70b")
        for name, how in _WEIGHTS.items()
    },
}


def attention_dp_table() -> str:
    """How Llama-3.1-8B with two key and value heads is served on eight devices, a layer of it."""
    import jax

    from maxtext.config.load import load
    from maxtext.decoding.cache import abstract_cache
    from maxtext.decoding.load import abstract_params
    from maxtext.decoding.sampling import Mode
    from maxtext.decoding.scheduler import Limits
    from maxtext.decoding.step import Step, StepShape, lower_step
    from maxtext.models.decoder import model_params
    from maxtext.models.registry import architecture
    from maxtext.parallel.debug import ShardingLog, activation_lines, weight_lines
    from maxtext.parallel.serving import serving_layout

    own = ("base_num_kv_heads=2", "base_num_decoder_layers=1", "override_model_config=true")
    config = load(("model_name=llama3.1-8b", "ici_tensor_parallelism=8", *own), {}).config
    keys = {"enable_dp_attention": True, "attn_dp_weights": "replicated"}
    mesh = config.mesh.model_copy(update=keys)
    log = ShardingLog(FOLDER)
    layout = serving_layout(mesh, config.model, jax.devices())
    layout = dataclasses.replace(layout, log=log)
    model = architecture(config.model, weight_dtype="bfloat16")
    params = abstract_params(model, layout, dtype="bfloat16")
    log.weights(model_params(model), params, layout=layout, apart=True)
    # 96 requests, a token each.
    limits = Limits(4, 24, 24, 24, 16, 16, prefix_caching=False)
    cache = abstract_cache(model, layout, limits, "bfloat16")
    step = Step(model, "bfloat16", logits_in_float32=False, vocab_size=config.model.vocab_size)
    lower_step(step, params, cache, layout, shape=StepShape(4, 24, 24, 1), mode=Mode())
    # Not the line of the code, which moves with every change of a file.
    asked = [dataclasses.replace(one, name=one.name.split(":")[0]) for one in log.activations]
    return f"{activation_lines(asked)}\n{weight_lines(log.held)}"


TABLES: dict[str, Callable[[], str]] = {
    "checkpoint.txt": checkpoint_table,
    "attention_dp.txt": attention_dp_table,
    "plan.txt": plan_table,
    "plan_llama3.1-8b_v5e.txt": whole_plan,
    **{
        f"plan_{name}.svg": lambda case=case: plan_picture(*case)
        for name, case in _PICTURES.items()
    },
    **{f"sharding_{name}.txt": lambda name=name: sharding_table(name) for name in MODELS},
    f"sharding_{FUSED}_fused.txt": lambda: sharding_table(
        FUSED, "fused_qkv=true", "fused_mlp=true"
    ),
}

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    for file, make in TABLES.items():
        (FOLDER / file).write_text(make())
        print(f"wrote {FOLDER / file}")

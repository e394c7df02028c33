"""The tables that this folder keeps; `python tests/golden/tables.py` (`make golden`) rewrites them.

Each is made from shapes alone. A change of one is a change that users see: of how weights lie on
devices, or of what checkpoints hold.
"""

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


TABLES: dict[str, Callable[[], str]] = {
    "checkpoint.txt": checkpoint_table,
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

"""Our rules on the mesh that tpu-inference makes."""

import math

import jax
from jax.sharding import Mesh

from maxtext.config.attention_dp import attention_dp
from maxtext.config.schema import Config
from maxtext.parallel.debug import ShardingLog, sharding_log
from maxtext.parallel.layout import Layout
from maxtext.parallel.serving import ATTN_DP, DATA, EXPERT, MODEL, attention_dp_rules, tensor_layout

# What JAX reports of each compilation, in seconds.
COMPILED = "/jax/core/compile/backend_compile_duration"
# Our mesh axes by the names that its axes have; there are none for the others.
_NAMES = {"data": DATA, "expert": EXPERT, "tensor": MODEL}


def data_degree(config: Config) -> int:
    """Copies of the model, each with requests of its own."""
    return max(1, config.mesh.ici_data_parallelism)


def engine_layout(config: Config, mesh: Mesh) -> Layout:
    """The mesh with the rules of serving.

    Raises:
        ValueError: The mesh is another than `config` asks for.
    """
    dp = attention_dp(config.mesh, config.model)
    asked = {DATA: data_degree(config), ATTN_DP: dp.attn_dp, EXPERT: 1, MODEL: dp.model}
    found = {name: mesh.shape[name] for name in asked}
    if found != asked or math.prod(asked.values()) != mesh.size:
        raise ValueError(
            f"the config asks for a mesh of {_listed(asked)} ({dp.why}), and vLLM made one of "
            f"{_listed(dict(mesh.shape))}"
        )
    log = _log(config)
    if dp.attn_dp > 1:
        return Layout(mesh, attention_dp_rules(dp), log=log)
    rules = {
        name: tuple(_NAMES[axis] for axis in axes if axis in _NAMES)
        for name, axes in config.mesh.logical_axis_rules
    }
    return tensor_layout(Layout(mesh, rules, log=log), kv_heads=config.model.num_kv_heads)


def _log(config: Config) -> ShardingLog | None:
    """The log of `debug_sharding`, which is written after each compilation."""
    log = sharding_log(config.run, config.run.run_name)
    if log is None:
        return None

    def write(event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILED:
            log.write()

    jax.monitoring.register_event_duration_secs_listener(write)
    return log


def _listed(sizes: dict[str, int]) -> str:
    return " x ".join(f"{name} {size}" for name, size in sizes.items())

"""A config to all that can be said of it before anything runs."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from maxtext.config.attention_dp import AttentionDP, attention_dp
from maxtext.config.errors import ConfigError, Problem
from maxtext.config.schema import DEGREES, Config, MeshConfig
from maxtext.models.decoder import model_params
from maxtext.models.registry import architecture
from maxtext.parallel.params import count_params
from maxtext.planning.devices import DEVICES, GIB, Device, fitting
from maxtext.planning.serving import ServingPlan, plan_serving
from maxtext.planning.training import TrainingPlan, plan_training

# As many times the devices are tried where a model does not fit.
_FACTORS = (2, 4, 8, 16, 32, 64)
# Of the devices that would do, the smallest are named.
_NAMED = 3
# More take more than seconds, and no slice has as many.
_MOST_DEVICES = 2**14
_TENSOR, _FSDP = "ici_tensor_parallelism", "ici_fsdp_parallelism"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a config does.

    Attributes:
        model: Its `model_name`.
        num_params: Its weights.
        num_devices: How many devices there are.
        device: Their kind; None where only their memory is known.
        hbm_bytes: Memory of one.
        attention: How requests and heads share devices while attention runs.
        serving: What the engine does; None where it cannot.
        training: What training does; None where it cannot.
        problems: Why not.
        instead: What would fit where serving or training does not.
    """

    model: str
    num_params: int
    num_devices: int
    device: Device | None
    hbm_bytes: int
    attention: AttentionDP
    serving: ServingPlan | None
    training: TrainingPlan | None
    problems: Mapping[str, str]
    instead: Mapping[str, tuple[str, ...]]


def make_plan(config: Config) -> Plan:
    """The plan of a config.

    Raises:
        ConfigError: No memory is given, there are too many devices, or neither serving nor training
            is possible.
    """
    device = DEVICES.get(config.plan.plan_device)
    hbm_bytes = round(config.plan.hbm_gib * GIB) or (device.hbm_bytes if device else 0)
    if not hbm_bytes:
        hint = f"plan_device is one of {', '.join(DEVICES)}; or give hbm_gib"
        raise ConfigError(
            [Problem("plan_device", "how much memory a device has is unknown", hint=hint)]
        )
    count = num_devices(config)
    problems: dict[str, str] = {}
    dp = attention_dp(config.mesh, config.model)

    def attempt[T](what: str, plan: Callable[..., T]) -> T | None:
        try:
            return plan(config, num_devices=count, hbm_bytes=hbm_bytes, device=device)
        except ValueError as error:
            problems[what] = str(error)
            return None

    serving = attempt("serving", plan_serving)
    training = None
    if dp.attn_dp > 1:
        problems["training"] = "attention data parallelism serves requests, training has none"
    else:
        training = attempt("training", plan_training)
    if serving is None and training is None:
        raise ConfigError([Problem("", line) for line in problems["serving"].splitlines()])
    instead: dict[str, tuple[str, ...]] = {}
    if serving is not None and serving.fit.sequences < 1:
        instead["serving"] = tuple(_serving_instead(config, serving, count, hbm_bytes, device))
    if training is not None and training.free_bytes < 0:
        instead["training"] = tuple(_training_instead(config, training, count, hbm_bytes, device))
    specs = model_params(architecture(config.model, weight_dtype=config.compute.weight_dtype))
    return Plan(
        model=config.run.model_name,
        num_params=count_params(specs),
        num_devices=count,
        device=device,
        hbm_bytes=hbm_bytes,
        attention=dp,
        serving=serving,
        training=training,
        problems=problems,
        instead=instead,
    )


def num_devices(config: Config) -> int:
    """How many devices a config is planned for.

    Raises:
        ConfigError: They are too many.
    """
    mesh, count = config.mesh, config.plan.plan_num_devices
    if count < 1:
        names = (
            f"{family}_{DEGREES[axis]}_parallelism" for family in ("ici", "dcn") for axis in DEGREES
        )
        count = math.prod(max(1, getattr(mesh, name)) for name in names)
    if count > _MOST_DEVICES:
        message = f"{count:,} devices are too many to plan for"
        raise ConfigError([Problem("plan_num_devices", message, hint=f"at most {_MOST_DEVICES:,}")])
    return count


def _serving_instead(
    config: Config, plan: ServingPlan, count: int, hbm_bytes: int, device: Device | None
) -> Iterator[str]:
    """What would hold the weights and a sequence of full length."""
    length = plan.fit.length
    needed = plan.weight_bytes + plan.cache_bytes_per_token * length / (
        config.decode.kv_cache_memory_fraction
    )
    yield from _other_devices(needed, device)
    for factor in _FACTORS:
        degree = max(1, config.mesh.ici_tensor_parallelism) * factor
        larger = _with_mesh(config, {_TENSOR: degree})
        try:
            tried = plan_serving(
                larger, num_devices=count * factor, hbm_bytes=hbm_bytes, device=device
            )
        except ValueError:
            continue
        if tried.fit.sequences:
            yield f"{count * factor} devices: {_TENSOR}={degree}"
            return


def _training_instead(
    config: Config, plan: TrainingPlan, count: int, hbm_bytes: int, device: Device | None
) -> Iterator[str]:
    """What would hold all that is reckoned."""
    yield from _other_devices(plan.memory.total, device)
    tried: dict[str, list[tuple[str, Config, int]]] = {"remat": [], "rows": [], "devices": []}
    if config.compute.remat_policy != "full":
        compute = config.compute.model_copy(update={"remat_policy": "full"})
        less = config.model_copy(update={"compute": compute})
        tried["remat"].append(("remat_policy=full", less, count))
    for factor in _FACTORS:
        size = config.data.per_device_batch_size / factor
        data = config.data.model_copy(update={"per_device_batch_size": size})
        less = config.model_copy(update={"data": data})
        tried["rows"].append((f"per_device_batch_size={size:g}", less, count))
        degree = config.mesh.ici_fsdp_parallelism
        larger = _with_mesh(config, {_FSDP: degree if degree == -1 else degree * factor})
        text = f"{count * factor} devices, {_FSDP} taking {factor} times as many"
        tried["devices"].append((text, larger, count * factor))
    for ways in tried.values():
        for text, other, num in ways:
            if _trains(other, num, hbm_bytes, device):
                yield text
                break


def _trains(config: Config, count: int, hbm_bytes: int, device: Device | None) -> bool:
    try:
        plan = plan_training(config, num_devices=count, hbm_bytes=hbm_bytes, device=device)
    except ValueError:
        return False
    return plan.free_bytes >= 0


def _other_devices(needed: float, device: Device | None) -> Iterator[str]:
    names = fitting(needed, but=device.name if device else "")
    if names:
        yield f"plan_device={' or '.join(names[:_NAMED])}"


def _with_mesh(config: Config, update: Mapping[str, int]) -> Config:
    mesh: MeshConfig = config.mesh.model_copy(update=dict(update))
    return config.model_copy(update={"mesh": mesh})

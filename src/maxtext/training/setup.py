"""A config to all that a run is made of, before anything is compiled or allocated."""

import contextlib
import dataclasses
import functools
import importlib.util
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding

from maxtext.config.errors import ConfigError, Problem
from maxtext.config.schema import ComputeConfig, Config
from maxtext.data.batch import Batch, Shard
from maxtext.models.decoder import Architecture, Model, model_params
from maxtext.models.registry import architecture
from maxtext.ops.attention import FLASH_BLOCK
from maxtext.optim.optimizer import optimizer
from maxtext.optim.schedules import schedule
from maxtext.parallel.layout import Layout
from maxtext.parallel.mesh import make_layout
from maxtext.training.loss import LossFn
from maxtext.training.state import TrainState, abstract_state, state_shardings
from maxtext.training.step import TrainStep


@contextlib.contextmanager
def config_errors() -> Generator[None]:
    """Turns a ValueError that the user's settings caused into a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError([Problem("", line) for line in str(error).splitlines()]) from error


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """A run that has not started.

    Attributes:
        config: Resolved: nothing in it is `auto` any more.
        directory: Folder of the run.
        layout: Mesh and rules.
        architecture: The model.
        specs: Its weights, declared.
        optimizer: Gradients to updates.
        schedule: Learning rate of a step.
        abstract: Shapes and shardings of the state.
    """

    config: Config
    directory: Path
    layout: Layout
    architecture: Architecture
    specs: Model
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    abstract: TrainState

    @property
    def batch_shape(self) -> tuple[int, int]:
        """Rows of the global batch of an update, tokens of a row."""
        rows = _rows(self.config.data.per_device_batch_size, self.layout)
        accumulation = self.config.training.gradient_accumulation_steps
        return rows * accumulation, self.config.data.max_target_length

    @property
    def eval_batch_shape(self) -> tuple[int, int]:
        """The same, for evaluation."""
        data = self.config.data
        rows = _rows(data.eval_per_device_batch_size or data.per_device_batch_size, self.layout)
        return rows, data.max_target_length

    def batch_sharding(self, shape: tuple[int, int]) -> NamedSharding:
        """Where the arrays of a batch lie."""
        return self.layout.sharding(("activation_batch", None), shape)

    def loss_fn(self, *, dropout: bool) -> LossFn:
        """The loss, with dropout if that is asked for and the config has any."""
        training = self.config.training
        rate = training.dropout_rate if dropout and training.enable_dropout else 0.0
        return LossFn(self.architecture, self.config.compute, dropout_rate=rate)

    def train_step(self) -> TrainStep:
        """The step, not compiled."""
        training = self.config.training
        return TrainStep(
            loss_fn=self.loss_fn(dropout=True),
            optimizer=self.optimizer,
            schedule=self.schedule,
            shardings=state_shardings(self.abstract).params,
            accumulation=training.gradient_accumulation_steps,
            z_loss_multiplier=training.z_loss_multiplier,
            seed=training.init_weights_seed,
        )

    def abstract_batch(self, shape: tuple[int, int]) -> Batch:
        """Shapes and shardings of a batch."""
        one = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self.batch_sharding(shape))
        names = [field.name for field in dataclasses.fields(Batch)]
        return Batch(**cast(dict[str, Any], dict.fromkeys(names, one)))


def prepare(config: Config) -> Setup:
    """Everything about a run that shapes alone decide.

    Raises:
        ConfigError: The mesh does not fit the devices, a weight or the batch does not divide
            over it, or the backend lacks what is asked for.
    """
    _set_up_jax(config)
    with config_errors():
        compute = resolve(config.compute, jax.default_backend(), config.data.max_target_length)
        layout = make_layout(config.mesh, jax.devices())
        model = architecture(config.model, weight_dtype=compute.weight_dtype)
        specs = model_params(model)
        rate = schedule(config.optimizer, steps=config.training.steps)
        transform = optimizer(config.optimizer, rate)
        name = config.run.run_name or f"{config.run.model_name}-{time.strftime('%Y%m%d-%H%M%S')}"
        setup = Setup(
            config=config.model_copy(update={"compute": compute}),
            directory=Path(config.run.base_output_directory, name),
            layout=layout,
            architecture=model,
            specs=specs,
            optimizer=transform,
            schedule=rate,
            abstract=abstract_state(specs, transform, layout),
        )
        _check_batch(setup)
    return setup


def resolve(config: ComputeConfig, backend: str, length: int) -> ComputeConfig:
    """The config with each `auto` replaced by what it means on this backend.

    Raises:
        ValueError: The backend or the row length does not allow `attention=flash`.
    """
    dtype, attention = config.dtype, config.attention
    if dtype == "auto":
        dtype = "float32" if backend == "cpu" else "bfloat16"
    if attention == "autoselected":
        fits = backend == "tpu" and length % FLASH_BLOCK == 0
        attention = "flash" if fits else "dot_product"
    if attention == "flash" and backend == "cpu":
        raise ValueError("attention=flash: its kernels are for TPU and GPU; use dot_product on cpu")
    if attention == "flash" and backend == "gpu" and importlib.util.find_spec("tokamax") is None:
        raise ValueError("attention=flash on GPU needs tokamax: pip install 'maxtext[gpu]'")
    if attention == "flash" and length % FLASH_BLOCK:
        raise ValueError(
            f"attention=flash: max_target_length={length} is not a multiple of {FLASH_BLOCK}"
        )
    return config.model_copy(update={"dtype": dtype, "attention": attention})


def data_shard(sharding: NamedSharding, shape: tuple[int, int]) -> tuple[Shard, int]:
    """Which part of the data this process feeds, and how many rows of each batch that are.

    Processes that hold the same rows (tensor parallelism across hosts) feed the same data.

    Raises:
        ValueError: The rows of two processes overlap in part.
    """
    rows: dict[int, set[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        held = range(*index[0].indices(shape[0]))
        rows.setdefault(device.process_index, set()).update(held)
    parts = sorted({tuple(sorted(held)) for held in rows.values()})
    if sum(len(part) for part in parts) != shape[0] or len({len(part) for part in parts}) > 1:
        raise ValueError(
            f"{shape[0]} rows do not lie evenly over {len(rows)} processes on this mesh; put the "
            "axes that split the batch (data, fsdp) across processes"
        )
    mine = tuple(sorted(rows[jax.process_index()]))
    return Shard(process_index=parts.index(mine), process_count=len(parts)), len(mine)


def place(batch: Batch, *, sharding: NamedSharding, shape: tuple[int, int]) -> Batch:
    """The rows of this process as part of the global batch on the devices."""
    put = functools.partial(jax.make_array_from_process_local_data, sharding, global_shape=shape)
    return jax.tree.map(put, batch)


def _rows(per_device: float, layout: Layout) -> int:
    rows = per_device * layout.mesh.size
    if rows != int(rows):
        raise ValueError(
            f"per_device_batch_size={per_device} x {layout.mesh.size} devices = {rows} rows; "
            "it must be a whole number"
        )
    return int(rows)


def _check_batch(setup: Setup) -> None:
    """Holds rows against the mesh; errors name the key, not the logical axis."""
    ways = setup.layout.ways("activation_batch")
    accumulation = setup.config.training.gradient_accumulation_steps
    for key, rows in (
        ("per_device_batch_size", setup.batch_shape[0] // accumulation),
        ("eval_per_device_batch_size", setup.eval_batch_shape[0]),
    ):
        if rows % ways:
            raise ValueError(
                f"{key}: {rows} rows a forward pass do not divide over the {ways} devices that "
                f"split the batch; use a multiple of {ways / setup.layout.mesh.size:g}"
            )


def _set_up_jax(config: Config) -> None:
    if config.run.jax_cache_dir and jax.config.jax_compilation_cache_dir is None:
        folder = Path(config.run.jax_cache_dir).expanduser()
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    precision = config.compute.matmul_precision
    jax.config.update("jax_default_matmul_precision", None if precision == "default" else precision)

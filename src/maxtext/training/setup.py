"""A config to all that a run is made of, before anything is compiled or allocated."""

import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from maxtext.config.schema import Config
from maxtext.data.batch import Batch, Shard
from maxtext.models.backend import config_errors, resolve, set_up_jax
from maxtext.models.decoder import Architecture, Model, model_params
from maxtext.models.fusion import NOTHING_FUSED, Fusion, fusion_from_config
from maxtext.models.registry import architecture
from maxtext.optim.optimizer import Optimizer, optimizer
from maxtext.optim.schedules import Schedule, schedule
from maxtext.parallel.debug import sharding_log
from maxtext.parallel.layout import Layout
from maxtext.parallel.mesh import make_layout
from maxtext.parallel.params import abstract, select
from maxtext.parallel.pipeline import Pipeline
from maxtext.parallel.rows import check_length, row_split
from maxtext.training.loss import LossFn
from maxtext.training.pipelining import check_microbatches, choose_pipeline
from maxtext.training.state import TrainState, abstract_state, state_shardings
from maxtext.training.step import TrainStep

# What int32 counts.
_MOST_TOKENS = 2**31 - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """A run that has not started.

    Attributes:
        config: Resolved: nothing in it is `auto` any more.
        directory: Folder of the run.
        layout: Mesh and rules.
        architecture: The model.
        specs: Its weights, declared apart.
        fusion: Which of them lie together in the state.
        optimizer: Gradients to new weights.
        schedule: Learning rate of a step.
        pipeline: How layers run in stages, if there are several.
        abstract: Shapes and shardings of the state.
    """

    config: Config
    directory: Path
    layout: Layout
    architecture: Architecture
    specs: Model
    fusion: Fusion
    optimizer: Optimizer
    schedule: Schedule
    pipeline: Pipeline | None
    abstract: TrainState

    @property
    def stored(self) -> TrainState:
        """What checkpoints hold of the state: the same whatever is fused."""
        return dataclasses.replace(self.abstract, params=abstract(self.specs, self.layout))

    def to_stored(self, state: TrainState) -> TrainState:
        """The state as checkpoints hold it.

        What is fused is there twice as long as both are kept, as in a step with its gradients.
        """
        return dataclasses.replace(state, params=self._apart(state.params))

    def from_stored(self, state: TrainState) -> TrainState:
        """The state that a checkpoint held."""
        if self.fusion == NOTHING_FUSED:
            return state
        shardings = state_shardings(self.abstract).params
        params = jax.jit(self.fusion.joined, out_shardings=shardings)(state.params)
        return dataclasses.replace(state, params=params)

    @functools.cached_property
    def _apart(self) -> Callable[[Any], Any]:
        """Compiled once for all saves."""
        if self.fusion == NOTHING_FUSED:
            return lambda params: params
        return jax.jit(self.fusion.apart, out_shardings=state_shardings(self.stored).params)

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
        data = self.config.data
        return LossFn(
            self.architecture,
            self.config.compute,
            pipeline=self.pipeline,
            dropout_rate=rate,
            max_segments=data.max_segments_per_seq if data.packing else 1,
        )

    def train_step(self) -> TrainStep:
        """The step, not compiled."""
        training = self.config.training
        over_data = self.config.mesh.shard_optimizer_over_data
        place = functools.partial(self.layout.like, over_data=over_data)
        trained = select(self.stored.params, self.optimizer.trainable)
        return TrainStep(
            loss_fn=self.loss_fn(dropout=True),
            optimizer=self.optimizer,
            shardings=state_shardings(self.abstract),
            update_shardings=jax.tree.map(lambda one: place(one.sharding, one.shape), trained),
            fusion=self.fusion,
            accumulation=training.gradient_accumulation_steps,
            grad_dtype=self.config.optimizer.grad_dtype,
            z_loss_multiplier=training.z_loss_multiplier,
            seed=training.init_weights_seed,
        )

    def abstract_batch(self, shape: tuple[int, int]) -> Batch:
        """Shapes and shardings of a batch."""
        one = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self.batch_sharding(shape))
        names = [field.name for field in dataclasses.fields(Batch)]
        return Batch(**cast(dict[str, Any], dict.fromkeys(names, one)))

    def abstract_rate(self) -> jax.ShapeDtypeStruct:
        """Shape and sharding of the learning rate that a step is given."""
        return jax.ShapeDtypeStruct((), jnp.float32, sharding=self.layout.sharding((), ()))


def prepare(config: Config) -> Setup:
    """Everything about a run that shapes alone decide.

    Raises:
        ConfigError: The mesh does not fit the devices, a weight or the batch does not divide
            over it, or the backend lacks what is asked for.
    """
    set_up_jax(config.run, config.compute)
    with config_errors():
        setup = make_setup(config, jax.devices(), backend=jax.default_backend())
        if not config.training.compile_only:
            _check_memory(setup.abstract)
    return setup


def make_setup(config: Config, devices: Sequence[Any], *, backend: str) -> Setup:
    """The same on devices that need not be there.

    Args:
        config: Its keys.
        devices: What `make_layout` takes.
        backend: Their kind, `cpu`, `gpu` or `tpu`.

    Raises:
        ValueError: As `prepare`.
    """
    layout = make_layout(config.mesh, devices)
    compute = resolve(
        config.compute,
        config.model,
        backend=backend,
        length=config.data.max_target_length,
        split=row_split(layout),
    )
    model = architecture(config.model, weight_dtype=compute.weight_dtype)
    pipeline = choose_pipeline(config, model, layout)
    specs = model_params(model)
    fusion = fusion_from_config(compute)
    transform = optimizer(config.optimizer, specs)
    over_data = config.mesh.shard_optimizer_over_data
    model_name = Path(config.run.model_name).stem
    name = config.run.run_name or f"{model_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory = Path(os.path.expanduser(config.run.base_output_directory)) / name
    state = abstract_state(specs, transform, layout, over_data=over_data, fusion=fusion)
    log = sharding_log(config.run, name)
    if log is not None:
        log.weights(specs, state.params, layout=layout, apart=not compute.scan_layers)
        layout = dataclasses.replace(layout, log=log)
    setup = Setup(
        config=config.model_copy(update={"compute": compute}),
        directory=directory,
        layout=layout,
        architecture=model,
        specs=specs,
        fusion=fusion,
        optimizer=transform,
        schedule=schedule(config.optimizer, steps=config.training.steps),
        pipeline=pipeline,
        abstract=state,
    )
    _check_batch(setup)
    _check_rows(setup)
    _check_tiles(setup)
    return setup


def data_shard(sharding: NamedSharding, shape: tuple[int, int]) -> tuple[Shard, int]:
    """Which part of the data this process feeds, and how many rows of each batch that are.

    Processes that hold the same rows (tensor parallelism across hosts) feed the same data.

    Raises:
        ValueError: The rows of two processes overlap in part.
    """
    rows: dict[int, set[tuple[int, int]]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        first, end, _ = index[0].indices(shape[0])
        rows.setdefault(device.process_index, set()).add((first, end))
    parts = sorted({tuple(sorted(held)) for held in rows.values()})
    sizes = {part: sum(end - first for first, end in part) for part in parts}
    if sum(sizes.values()) != shape[0] or len(set(sizes.values())) > 1:
        raise ValueError(
            f"{shape[0]} rows do not lie evenly over {len(rows)} processes on this mesh; put the "
            "axes that split the batch (data, fsdp) across processes"
        )
    mine = tuple(sorted(rows[jax.process_index()]))
    return Shard(process_index=parts.index(mine), process_count=len(parts)), sizes[mine]


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
    for key, rows, passes in (
        ("per_device_batch_size", setup.batch_shape[0] // accumulation, accumulation),
        ("eval_per_device_batch_size", setup.eval_batch_shape[0], 1),
    ):
        if rows * passes * setup.batch_shape[1] > _MOST_TOKENS:
            raise ValueError(
                f"{key}: {rows} rows, times gradient_accumulation_steps={passes}, of "
                f"max_target_length={setup.batch_shape[1]} tokens are more than a batch can hold; "
                "lower one of them"
            )
        if rows % ways:
            raise ValueError(
                f"{key}: {rows} rows a forward pass do not divide over the {ways} devices that "
                f"split the batch; use a multiple of {ways / setup.layout.mesh.size:g}"
            )
        if setup.pipeline is not None:
            check_microbatches(setup.pipeline, setup.layout, key=key, rows=rows)


def _check_rows(setup: Setup) -> None:
    """Holds the length of rows, and what depends on the order of their tokens, against the mesh."""
    check_length(setup.layout, setup.config.data.max_target_length)
    if setup.loss_fn(dropout=True).dropout_rate and row_split(setup.layout).balanced:
        raise ValueError(
            f"dropout_rate={setup.config.training.dropout_rate}: context parallelism reorders the "
            "tokens of a row, and dropout would zero others than on one device; add "
            "context_parallel_load_balance=false"
        )


def _check_tiles(setup: Setup) -> None:
    """Holds the tiles of the vocabulary against the mesh; errors name the key."""
    tiles, size = setup.config.compute.num_vocab_tiling, setup.config.model.vocab_size
    ways = setup.layout.ways("activation_vocab")
    if tiles > 1 and size // tiles % ways:
        raise ValueError(
            f"num_vocab_tiling={tiles}: {size // tiles} tokens of the vocabulary in a tile do not "
            f"divide over the {ways} devices that split it; use fewer tiles"
        )


def _check_memory(abstract: TrainState) -> None:
    """Refuses a state that no step can be taken with, before minutes are spent on making it."""
    device = jax.local_devices()[0]
    leaves = jax.tree.leaves(abstract)
    needed = sum(
        math.prod(one.sharding.shard_shape(one.shape)) * one.dtype.itemsize for one in leaves
    )
    stats = device.memory_stats() or {}
    limit, what = stats.get("bytes_limit"), "a device"
    if device.platform == "cpu":
        # Virtual devices share the memory of the machine.
        needed *= len(jax.local_devices())
        limit, what = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "this machine"
    if limit is not None and needed > limit:
        raise ValueError(
            f"weights and optimizer take {needed / 2**30:.4g} GiB and {what} has "
            f"{limit / 2**30:.4g} GiB; use a smaller model (base_num_decoder_layers, "
            "base_emb_dim, ...), or more devices that split it"
        )

"""What a run starts from: its data, its state, its compiled step, its log."""

import contextlib
import dataclasses
import functools
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.stages import Compiled, Traced

from maxtext.checkpoint.loading import load_full_state
from maxtext.checkpoint.store import CheckpointStore
from maxtext.conversion.loading import load_weights
from maxtext.data.batch import Batch, State, own_state
from maxtext.data.iterators import make_train_iterator
from maxtext.data.prefetch import DevicePrefetcher
from maxtext.metrics.devices import memory_use, peak_flops
from maxtext.metrics.flops import train_flops
from maxtext.metrics.step_log import StepLog, Workload
from maxtext.models.backend import config_errors
from maxtext.optim.optimizer import SPIKES
from maxtext.optim.schedules import schedule_length
from maxtext.parallel.distributed import together
from maxtext.parallel.layout import DATA
from maxtext.parallel.mesh import describe
from maxtext.parallel.params import count_params, named_leaves
from maxtext.training.evaluation import Evaluation
from maxtext.training.recorder import Recorder
from maxtext.training.setup import Setup, data_shard, place
from maxtext.training.state import TrainState, fresh_state, state_from_params
from maxtext.training.step import StepMetrics

_logger = logging.getLogger(__name__)
GIB = 2**30

type StepFn = Callable[[TrainState, Batch, np.float32], tuple[TrainState, StepMetrics]]


@dataclasses.dataclass
class Run:
    """A run under way; `step` updates are done, `data_state` is the place in the data."""

    setup: Setup
    state: TrainState
    step: int
    data_state: State
    batches: DevicePrefetcher
    evaluation: Evaluation | None
    store: CheckpointStore | None
    step_fn: StepFn
    recorder: Recorder
    log: StepLog


def start(setup: Setup, stack: contextlib.ExitStack) -> Run:
    """Opens everything, what can fail on the user's input first; `stack` closes it.

    Raises:
        ConfigError: Data cannot be read, or a checkpoint is damaged or of another model.
    """
    log_start(setup)
    with config_errors():
        traced = trace_step(setup)
    config = setup.config
    shape = setup.batch_shape
    sharding = setup.batch_sharding(shape)
    with config_errors(), together():
        shard, rows = data_shard(sharding, shape)
        iterator = make_train_iterator(
            config.data, rows=rows, shard=shard, vocab_size=config.model.vocab_size
        )
        stack.callback(iterator.close)
        evaluation = Evaluation(setup) if config.training.eval_interval >= 0 else None
        if evaluation is not None:
            stack.callback(evaluation.close)
    store = None
    with config_errors():
        if config.checkpoint.enable_checkpointing:
            store = stack.enter_context(_open_store(setup))
        state, data_states = starting_state(setup, store)
        with together():
            if data_states is not None:
                iterator.set_state(own_state(data_states, shard))
    # Asked here: below, a thread takes batches from the iterator.
    data_state = iterator.get_state()
    batches = DevicePrefetcher(
        iterator,
        place=functools.partial(place, sharding=sharding, shape=shape),
        size=config.data.grain_prefetch_buffer_size,
    )
    stack.callback(batches.close)
    step = int(state.step)
    workload = _workload(setup)
    with config_errors(), together():
        log = stack.enter_context(
            StepLog(
                config.metrics,
                workload,
                tensorboard_dir=str(setup.directory / "tensorboard"),
                start_step=step,
                writes=jax.process_index() == 0,
            )
        )
    return Run(
        setup=setup,
        state=state,
        step=step,
        data_state=data_state,
        batches=batches,
        evaluation=evaluation,
        store=store,
        step_fn=compile_step(traced),
        recorder=Recorder(log, config.training),
        log=log,
    )


def starting_state(
    setup: Setup, store: CheckpointStore | None
) -> tuple[TrainState, list[State] | None]:
    """The state, and the places of all processes in the data where they are known.

    The run's own checkpoints come first, then the path that the config gives, then random
    weights.

    Raises:
        CheckpointError: A checkpoint is damaged, or of another model.
    """
    config = setup.config.checkpoint
    wanted = config.restore_step
    if store is not None and (wanted != -1 or store.latest_step() is not None):
        found = store.restore(wanted, setup.abstract) if wanted != -1 else None
        found = found or store.restore_newest(setup.abstract)
        assert found is not None
        _logger.info("resumed from step %d of %s", int(found.state.step), setup.directory)
        if found.set_aside:
            _logger.info("set aside newer steps: %s", ", ".join(map(str, found.set_aside)))
        _log_schedule(setup, found.config, found.step)
        return found.state, found.data_states
    if config.load_full_state_path:
        found = load_full_state(config.load_full_state_path, setup.abstract)
        _logger.info("state of step %d of %s", found.step, config.load_full_state_path)
        _log_schedule(setup, found.config, found.step)
        return found.state, found.data_states
    if config.load_parameters_path:
        params = load_weights(
            config.load_parameters_path, setup.abstract.params, model=setup.config.model
        )
        _logger.info("weights of %s", config.load_parameters_path)
        return state_from_params(params, setup.optimizer, setup.abstract), None
    seed = setup.config.training.init_weights_seed
    return fresh_state(setup.specs, setup.optimizer, setup.abstract, seed=seed), None


def trace_step(setup: Setup) -> Traced:
    """The training step for this run's shapes, its state donated.

    Raises:
        ValueError: An activation cannot be laid out so.
    """
    step = jax.jit(setup.train_step(), donate_argnums=0)
    batch = setup.abstract_batch(setup.batch_shape)
    return step.trace(setup.abstract, batch, setup.abstract_rate())


def compile_step(traced: Traced) -> StepFn:
    """The program of a traced step; logs time and memory."""
    began = time.perf_counter()
    compiled = traced.lower().compile()
    seconds = time.perf_counter() - began
    _logger.info("step compiled in %.1f s%s", seconds, _memory_text(compiled))
    use = memory_use()
    if use is not None:
        _logger.info(
            "%.3g of %.3g GiB in use on the fullest device", use.in_use / GIB, use.limit / GIB
        )
    return compiled


def log_start(setup: Setup) -> None:
    """Logs the config, the mesh, the size of the model and the work of a step."""
    config = setup.config
    if config.run.log_config:
        for section in type(config).model_fields:
            values = getattr(config, section).model_dump(mode="json", by_alias=True)
            text = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
            _logger.info("%s: %s", section, text)
    rows, length = setup.batch_shape
    flops = _workload(setup).flops_per_device * setup.layout.mesh.size
    _logger.info("run %s on %s", setup.directory, describe(setup.layout.mesh))
    _logger.info(
        "%s: %s parameters in %s; a step takes %d rows of %d tokens and %.4g TFLOPs, attention is "
        "%s in %s",
        config.run.model_name,
        f"{count_params(setup.specs):,}",
        config.compute.weight_dtype,
        rows,
        length,
        flops / 1e12,
        config.compute.attention,
        config.compute.dtype,
    )
    _log_optimizer(setup)


def _log_optimizer(setup: Setup) -> None:
    """Logs what is trained, and how the optimizer's state is split, where that is not the rule."""
    weights, mask = named_leaves(setup.specs), named_leaves(setup.optimizer.trainable)
    trained = {name: weight for name, weight in weights.items() if mask[name]}
    if len(trained) < len(weights):
        _logger.info(
            "trained are %s of %s parameters: %d of %d arrays",
            f"{count_params(trained):,}",
            f"{count_params(weights):,}",
            len(trained),
            len(weights),
        )
    if setup.config.mesh.shard_optimizer_over_data:
        state = named_leaves(setup.abstract.opt_state)
        arrays = [
            leaf for name, leaf in state.items() if leaf.ndim and name.split("/")[0] != SPIKES
        ]
        whole = [leaf for leaf in arrays if DATA not in jax.tree.leaves(tuple(leaf.sharding.spec))]
        _logger.info(
            "the optimizer's state is split over data %d: %d of %d arrays; %.3g GiB do not divide",
            setup.layout.mesh.shape.get(DATA, 1),
            len(arrays) - len(whole),
            len(arrays),
            sum(leaf.size * leaf.dtype.itemsize for leaf in whole) / GIB,
        )


def _log_schedule(setup: Setup, saved: Mapping[str, Any], step: int) -> None:
    """Says so where the schedule is another one than the checkpoint's run had."""
    config = setup.config
    length = schedule_length(config.optimizer, steps=config.training.steps)
    before = saved["learning_rate_schedule_steps"]
    before = before if before > 0 else saved["steps"]
    if length != before and config.optimizer.lr_schedule_type != "constant":
        _logger.info(
            "the learning rate follows a schedule of %d steps, no longer one of %d: %.3e at step "
            "%d; learning_rate_schedule_steps=%d keeps it",
            length,
            before,
            setup.schedule(step),
            step,
            before,
        )


def _open_store(setup: Setup) -> CheckpointStore:
    config = setup.config.checkpoint
    return CheckpointStore(
        setup.directory / "checkpoints",
        keep=config.max_num_checkpoints_to_keep,
        asynchronous=config.async_checkpointing,
    )


def _workload(setup: Setup) -> Workload:
    config = setup.config
    rows, length = setup.batch_shape
    tokens = rows * length / setup.layout.mesh.size
    assert config.compute.attention != "autoselected"
    flops = train_flops(
        named_leaves(setup.specs),
        config.model,
        attention=config.compute.attention,
        length=length,
    )
    device = setup.layout.mesh.devices.flat[0]
    assert config.compute.dtype != "auto"
    return Workload(
        steps=config.training.steps,
        tokens_per_device=tokens,
        flops_per_device=flops.per_token * tokens,
        peak_flops=peak_flops(device.device_kind, config.compute.dtype),
    )


def _memory_text(compiled: Compiled) -> str:
    """What the compiler says of memory, where it says anything."""
    memory = compiled.memory_analysis()
    if memory is None:
        return ""
    held, extra = memory.argument_size_in_bytes / GIB, memory.temp_size_in_bytes / GIB
    return f"; memory a device: {held:.3g} GiB state and batch, {extra:.3g} GiB while it runs"

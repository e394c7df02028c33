"""What a run starts from: its data, its state, its compiled step, its log."""

import contextlib
import dataclasses
import functools
import json
import logging
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.stages import Compiled, Traced

from maxtext.checkpoint.store import CheckpointStore
from maxtext.data.batch import Batch, State, own_state
from maxtext.data.iterators import make_train_iterator
from maxtext.data.prefetch import DevicePrefetcher
from maxtext.metrics.devices import memory_use, peak_flops
from maxtext.metrics.flops import train_flops
from maxtext.metrics.goodput import Goodput
from maxtext.metrics.step_log import EvalRecord, StepLog, Workload
from maxtext.models.backend import config_errors
from maxtext.optim.optimizer import SPIKES
from maxtext.parallel.distributed import together
from maxtext.parallel.layout import DATA
from maxtext.parallel.mesh import describe
from maxtext.parallel.params import count_params, named_leaves
from maxtext.training.evaluation import Evaluation
from maxtext.training.profiling import Profiler
from maxtext.training.progress import still
from maxtext.training.recorder import Recorder
from maxtext.training.restoring import open_stores, starting_state
from maxtext.training.setup import Setup, data_shard, place
from maxtext.training.state import TrainState
from maxtext.training.step import StepMetrics

_logger = logging.getLogger(__name__)
GIB = 2**30

type StepFn = Callable[[TrainState, Batch, np.float32], tuple[TrainState, StepMetrics]]


@dataclasses.dataclass
class Run:
    """A run under way.

    Attributes:
        setup: What it is made of.
        state: Weights and optimizer.
        step: Updates done.
        data_state: Place in the data.
        batches: The data.
        evaluation: Held-out data; None where the config wants no evaluation.
        evaluated: The last evaluation of this process.
        store: Checkpoints; None where the config wants none.
        local_store: Checkpoints between those, on a faster disk.
        traced: The step, not compiled.
        recorder: Metrics to the log.
        log: The log.
        profiler: Traces steps.
        goodput: What the time goes to.
    """

    setup: Setup
    state: TrainState
    step: int
    data_state: State
    batches: DevicePrefetcher
    evaluation: Evaluation | None
    evaluated: EvalRecord | None
    store: CheckpointStore | None
    local_store: CheckpointStore | None
    traced: Traced
    recorder: Recorder
    log: StepLog
    profiler: Profiler
    goodput: Goodput


def start(setup: Setup, stack: contextlib.ExitStack, *, goodput: Goodput) -> Run:
    """Opens everything, what can fail on the user's input first; `stack` closes it.

    Raises:
        ConfigError: Data cannot be read, or a checkpoint is damaged or of another model.
    """
    work = workload(setup)
    log_start(setup, work)
    with config_errors(), goodput.during("compilation"):
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
    with config_errors():
        store, local_store = open_stores(setup, stack)
        state, data_states = starting_state(setup, store, local_store, goodput=goodput)
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
    with config_errors(), together():
        log = stack.enter_context(
            StepLog(
                config.metrics,
                work,
                tensorboard_dir=str(setup.directory / "tensorboard"),
                start_step=step,
                writes=jax.process_index() == 0,
            )
        )
    recorder = Recorder(log, config.training, goodput=goodput)
    profiler = Profiler(
        config.profile,
        folder=setup.directory / "tensorboard",
        first_step=step,
        recorder=recorder,
    )
    stack.callback(profiler.close)
    return Run(
        setup=setup,
        state=state,
        step=step,
        data_state=data_state,
        batches=batches,
        evaluation=evaluation,
        evaluated=None,
        store=store,
        local_store=local_store,
        traced=traced,
        recorder=recorder,
        log=log,
        profiler=profiler,
        goodput=goodput,
    )


def trace_step(setup: Setup) -> Traced:
    """The training step for this run's shapes, its state donated.

    Raises:
        ValueError: An activation cannot be laid out so.
    """
    step = jax.jit(setup.train_step(), donate_argnums=0)
    batch = setup.abstract_batch(setup.batch_shape)
    return step.trace(setup.abstract, batch, setup.abstract_rate())


def compile_step(setup: Setup, traced: Traced) -> Compiled:
    """The program of a traced step; logs time and memory, and how arrays lie if that is asked."""
    began = time.perf_counter()
    with still("compiling the step"):
        compiled = traced.lower().compile()
    if setup.layout.log is not None:
        setup.layout.log.write()
    seconds = time.perf_counter() - began
    _logger.info("step compiled in %.1f s%s", seconds, _memory_text(compiled))
    use = memory_use()
    if use is not None:
        _logger.info(
            "%.3g of %.3g GiB in use on the fullest device", use.in_use / GIB, use.limit / GIB
        )
    return compiled


def log_start(setup: Setup, work: Workload) -> None:
    """Logs the config, the mesh, the size of the model and the work of a step."""
    config = setup.config
    if config.run.log_config:
        for section in type(config).model_fields:
            values = getattr(config, section).model_dump(mode="json", by_alias=True)
            text = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
            _logger.info("%s: %s", section, text)
    rows, length = setup.batch_shape
    flops = work.flops_per_device * setup.layout.mesh.size
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


def workload(setup: Setup) -> Workload:
    """What the log reckons a step with."""
    config = setup.config
    rows, length = setup.batch_shape
    tokens = rows * length / setup.layout.mesh.size
    assert config.compute.attention != "autoselected"
    flops = train_flops(
        named_leaves(setup.specs),
        setup.architecture,
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

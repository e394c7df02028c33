"""Several processes to one run."""

import contextlib
import os
from collections.abc import Callable, Generator, Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from maxtext.config.schema import RunConfig

# The CPU client blocks a thread for each local device in a collective, and products wait for
# threads of the same pool: one as small as the cores may wait for ever.
CPU_THREADS = "32"
# Virtual CPU devices may start independent collectives each in an order of its own, until every
# thread waits for one that has none. This flag of XLA gives all of them one order.
VIRTUAL_DEVICES = "xla_force_host_platform_device_count"
ONE_ORDER = "xla_cpu_enable_concurrency_optimized_scheduler"


def set_up_virtual_devices() -> None:
    """Keeps virtual CPU devices from waiting for each other for ever; before jax makes devices."""
    flags = os.environ.get("XLA_FLAGS", "")
    if VIRTUAL_DEVICES in flags:
        os.environ.setdefault("NPROC", CPU_THREADS)
        if ONE_ORDER not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} --{ONE_ORDER}=false"


def initialize(config: RunConfig, environ: Mapping[str, str] = os.environ) -> None:
    """Joins the other processes, where the environment tells of any; before jax makes devices.

    That is `JAX_COORDINATOR_ADDRESS` with `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`, or a cluster
    that `jax.distributed.initialize` knows by itself: Open MPI, SLURM, TPU pods, GKE.

    Raises:
        ValueError: Some of the three variables are missing, or `run_name` is empty, so that each
            process would make up its own.
    """
    set_up_virtual_devices()
    if config.skip_jax_distributed_system or not _is_cluster(environ):
        return
    if not config.run_name:
        raise ValueError("run_name is empty: several processes need one name for their run")
    os.environ.setdefault("NPROC", CPU_THREADS)
    timeout = config.jax_distributed_initialization_timeout
    if "JAX_COORDINATOR_ADDRESS" not in environ:
        jax.distributed.initialize(initialization_timeout=timeout)
        return
    names = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    missing = [name for name in names if not environ.get(name, "").isdecimal()]
    if missing:
        raise ValueError(
            f"JAX_COORDINATOR_ADDRESS={environ['JAX_COORDINATOR_ADDRESS']} is set, so "
            f"{' and '.join(missing)} must be a number"
        )
    if not environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")[2].isdecimal():
        raise ValueError(
            f"JAX_COORDINATOR_ADDRESS={environ['JAX_COORDINATOR_ADDRESS']} must be host:port"
        )
    jax.distributed.initialize(
        coordinator_address=environ["JAX_COORDINATOR_ADDRESS"],
        num_processes=int(environ["JAX_NUM_PROCESSES"]),
        process_id=int(environ["JAX_PROCESS_ID"]),
        initialization_timeout=timeout,
    )


def _is_cluster(environ: Mapping[str, str]) -> bool:
    # A batch script has SLURM_NTASKS too, though it is one process: only srun starts them all.
    sizes = ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
    given = [environ.get(name, "") for name in sizes]
    many = any(text.isdecimal() and int(text) > 1 for text in given)
    pod = (
        "," in environ.get("TPU_WORKER_HOSTNAMES", "") or "MEGASCALE_COORDINATOR_ADDRESS" in environ
    )
    return "JAX_COORDINATOR_ADDRESS" in environ or many or pod


def gather(*values: int) -> np.ndarray:
    """The integers of every process, one row a process; all of them must call it."""
    return gather_later(*values)()


def gather_later(*values: int) -> Callable[[], np.ndarray]:
    """`gather`, its result on call: devices do it in its turn, and nobody waits for them here."""
    if jax.process_count() == 1:
        return lambda: np.asarray([values])
    grid = np.asarray(jax.devices()).reshape(jax.process_count(), -1)
    mesh = Mesh(grid, ("process", "device"))
    mine = np.asarray([values], np.int32)
    rows = multihost_utils.host_local_array_to_global_array(mine, mesh, PartitionSpec("process"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    gathered = jax.jit(_same, out_shardings=everywhere)(rows)
    return lambda: np.asarray(gathered.addressable_data(0))


def _same(x: jax.Array) -> jax.Array:
    # By a name: jit knows a function by its identity, and would compile a lambda at each call.
    return x


@contextlib.contextmanager
def together() -> Generator[None]:
    """A block that all processes enter, and that fails in all of them where it fails in one.

    Without it the others would wait for ever for the one that failed. The block must not wait for
    other processes itself.

    Raises:
        ValueError: It failed in another process; that one raises its own error.
    """
    try:
        yield
    except Exception:
        gather(1)
        raise
    failed = gather(0)[:, 0]
    if failed.any():
        raise ValueError(f"process {failed.argmax()} of {len(failed)} cannot go on and says why")

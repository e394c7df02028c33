"""Saves steps for ever, or as many as asked: what the tests of interrupted runs kill.

saving_process.py <directory> <rows> <steps> [<most bytes of a file> [<process> <port>]]
"""

import resource
import sys

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from maxtext.checkpoint.errors import CheckpointError
from maxtext.checkpoint.store import CheckpointStore


def state_of(step: int, rows: int, sharding: jax.sharding.Sharding) -> dict[str, jax.Array]:
    def make() -> dict[str, jax.Array]:
        place = jnp.arange(rows * 1024, dtype=jnp.int32).reshape(rows, 1024)
        return {"kernel": place * 7919 + step, "scale": place + step}

    return jax.jit(make, out_shardings=sharding)()


def main() -> None:
    given = sys.argv[1:]
    directory, rows, steps, most, process, port = [*given, *("0", "-1", "0")[len(given) - 3 :]]
    if int(process) >= 0:
        jax.distributed.initialize(f"localhost:{port}", 2, int(process))
    mesh = jax.make_mesh((jax.device_count(),), ("rows",), (AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("rows"))
    with CheckpointStore(directory, keep=2, asynchronous=True) as store:
        first = (store.latest_step() or 0) + 1
        if first > 1:
            target = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
                jax.eval_shape(lambda: state_of(0, int(rows), sharding)),
            )
            restored = store.restore_newest(target)
            want = state_of(first - 1, int(rows), sharding)
            same = jax.jit(lambda a, b: jnp.array([jnp.all(a[k] == b[k]) for k in a]).all())
            assert same(restored.state, want), f"step {first - 1} holds other numbers"
            saved = restored.data_states
            assert saved == [{"at": first - 1, "process": one} for one in range(len(saved))]
            print("resumed", first - 1, flush=True)
        if int(most):
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), int(most)))
        for step in range(first, first + int(steps)):
            state = state_of(step, int(rows), sharding)
            data_state = {"at": step, "process": jax.process_index()}
            print("saving", step, flush=True)
            store.save(step, state, data_state=data_state, config={"rows": int(rows)})
            store.wait()
            print("saved", step, flush=True)


if __name__ == "__main__":
    try:
        main()
    except CheckpointError as error:
        sys.exit(str(error))

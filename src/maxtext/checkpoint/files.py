"""The files of one step: the only place that knows Orbax.

A step's folder holds `state/` (arrays), and `data/`, `config/`, `metrics/` and `checksums/`, each
with one file `metadata` of plain JSON that is readable without JAX.
"""

import collections
import contextlib
import json
import logging
import math
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
import tensorstore as ts

from maxtext.checkpoint.arrays import array_context, array_spec
from maxtext.checkpoint.checksums import sealed_values
from maxtext.checkpoint.errors import code

_MAX_READ_AHEAD_BYTES = 2 * 2**30
_DICT_KEY = 2  # Orbax's number for it


def _is_not_from_orbax(record: logging.LogRecord) -> bool:
    return "/orbax/checkpoint/" not in record.pathname.replace("\\", "/")


# Orbax writes tracebacks to stderr for errors that it also raises; one message is enough.
logging.getLogger("absl").addFilter(_is_not_from_orbax)


def _array_handler() -> ocp.PyTreeCheckpointHandler:
    # Weights hardly compress: zstd takes three times as long to save 8 % of the bytes.
    return ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True, use_compression=False)


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *folders, last = name.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        assert last not in node, f"two leaves are called {name}"
        node[last] = leaf
    return tree


class StepWriter:
    """Writes steps in the background, each under another name until it is whole."""

    def __init__(self) -> None:
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(
                state=_array_handler(),
                data=ocp.JsonCheckpointHandler(),
                config=ocp.JsonCheckpointHandler(),
                metrics=ocp.JsonCheckpointHandler(),
                checksums=ocp.JsonCheckpointHandler(),
            )
        )

    def start(
        self, folder: Path, arrays: Mapping[str, jax.Array], values: Mapping[str, Any]
    ) -> None:
        """Starts to write; on return the arrays may be donated and the values changed."""
        items = {name: ocp.args.JsonSave(value) for name, value in values.items()}
        state = ocp.args.PyTreeSave(_nested(arrays))
        self._checkpointer.save(folder, args=ocp.args.Composite(state=state, **items))

    def wait(self) -> None:
        """Returns when the step has its final name. Raises what went wrong, in Orbax's words."""
        self._checkpointer.wait_until_finished()

    def close(self) -> None:
        """Ends the threads."""
        self._checkpointer.close()


def seal(folder: Path, leaves: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any]) -> None:
    """Makes arrays that were written without Orbax a step.

    Args:
        folder: The step's.
        leaves: As for `sealed_values`.
        values: As for `sealed_values`.

    Raises:
        OSError: Something cannot be written.
    """
    for item, value in sealed_values(leaves, values).items():
        (folder / item).mkdir(parents=True)
        (folder / item / "metadata").write_text(json.dumps(value))
    _write_tree_metadata(folder, {name: leaf["shape"] for name, leaf in leaves.items()})


def _write_tree_metadata(folder: Path, shapes: Mapping[str, Any]) -> None:
    """Tells Orbax which arrays there are in a step that is written without it."""
    tree: dict[str, Any] = {}
    for name, shape in shapes.items():
        parts = tuple(name.split("/"))
        tree[str(parts)] = {
            "key_metadata": [{"key": part, "key_type": _DICT_KEY} for part in parts],
            "value_metadata": {
                "value_type": "jax.Array",
                "skip_deserialize": False,
                "write_shape": shape,
            },
        }
    value = {"tree_metadata": tree, "use_ocdbt": True, "use_zarr3": True}
    value["store_array_data_equal_to_fill_value"] = True
    (folder / "state" / "_METADATA").write_text(json.dumps(value))


class _PendingArray:
    """An array whose shards of this process's devices are being read."""

    def __init__(self, wanted: jax.ShapeDtypeStruct, store: ts.TensorStore) -> None:
        assert wanted.sharding is not None, "a restore target needs shardings"
        if (store.shape, store.dtype.numpy_dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(f"there it is {store.dtype.name}{list(store.shape)}")
        self._wanted = wanted
        self._devices: dict[str, list[Any]] = collections.defaultdict(list)
        indices = wanted.sharding.addressable_devices_indices_map(wanted.shape)
        for device, index in indices.items():
            self._devices[str(index)].append(device)
        shards = {str(index): index for index in indices.values()}
        self._reads = {key: store[index].read() for key, index in shards.items()}
        shard_size = math.prod(wanted.sharding.shard_shape(wanted.shape))
        self.num_bytes = shard_size * wanted.dtype.itemsize * len(shards)

    def result(self) -> jax.Array:
        """The array, once read. Raises ValueError in TensorStore's words."""
        shards = [
            # A copy, as memory that JAX does not own cannot be donated.
            jax.device_put(read.result(), device, may_alias=False)
            for key, read in self._reads.items()
            for device in self._devices[key]
        ]
        wanted = self._wanted
        return jax.make_array_from_single_device_arrays(wanted.shape, wanted.sharding, shards)


def read_arrays(folder: Path, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """The wanted arrays of a step, laid out as asked.

    By TensorStore itself, which Orbax reads with too: Orbax leaves its other reads running when
    one fails, and they write their tracebacks to stderr later.

    Raises:
        ValueError: An array is missing or cannot be read.
    """
    context = array_context()
    specs = {name: array_spec(folder, name) for name in wanted}
    stores = {name: ts.open(spec, read=True, context=context) for name, spec in specs.items()}
    pending: dict[str, _PendingArray] = {}
    arrays: dict[str, jax.Array] = {}

    def finish(name: str) -> None:
        with _named(name):
            arrays[name] = pending.pop(name).result()

    for name, leaf in wanted.items():
        with _named(name):
            pending[name] = _PendingArray(leaf, stores[name].result())
        while sum(one.num_bytes for one in pending.values()) > _MAX_READ_AHEAD_BYTES:
            finish(next(iter(pending)))
    for name in list(pending):
        finish(name)
    return arrays


@contextlib.contextmanager
def _named(name: str) -> Generator[None]:
    """Puts an array's name in place of TensorStore's paragraph, of which the code is kept."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name} cannot be read: {code(error)}") from error

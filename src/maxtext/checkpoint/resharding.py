"""A step written again in other chunks, types or parts: `python -m maxtext.checkpoint reshard`."""

import contextlib
import os
import shutil
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts
from tqdm import tqdm

from maxtext.checkpoint.arrays import (
    array_context,
    chunk_shape,
    create_array,
    num_bytes,
    open_array,
    places,
    read_piece,
)
from maxtext.checkpoint.checksums import part_checksum
from maxtext.checkpoint.errors import CheckpointError, DamagedCheckpoint, brief
from maxtext.checkpoint.files import seal
from maxtext.checkpoint.folders import WEIGHTS, whole_folder
from maxtext.checkpoint.inspecting import find_step
from maxtext.checkpoint.reading import read_values
from maxtext.config.filesystem import folder_faults
from maxtext.config.trained import SIDE_FILES

_SECONDS_BETWEEN_LINES = 30


def reshard(
    source: str, directory: Path, *, chunk_bytes: int, params_only: bool, dtype: str | None
) -> Path:
    """Writes the step that `source` means to `directory`, under its number; returns the folder.

    One array is in memory at a time, of a larger one than 1 GiB a chunk as it was written.

    Args:
        source: A path as `find_step` takes it.
        directory: A folder of steps; made where there is none.
        chunk_bytes: Most bytes of a chunk, the least that is read at once.
        params_only: Leave out the optimizer and the step: what `load_parameters_path` reads.
        dtype: Type of the weights; None as they are.

    Raises:
        CheckpointError: The step cannot be read or written, or is there already.
    """
    jax.config.update("jax_platforms", "cpu")
    step = find_step(source)
    values = read_values(step, where=str(step))
    leaves = values.pop("checksums")["leaves"]
    folder = Path(os.path.expanduser(directory))
    target = folder.absolute() / step.name
    if target.exists():
        raise CheckpointError(f"{target} is there already; name another folder")
    for fault in folder_faults(folder):
        raise CheckpointError(f"{directory}: {fault}; name a folder that can be written")
    arrays = {
        name: leaf for name, leaf in leaves.items() if not params_only or name.startswith(WEIGHTS)
    }
    if dtype is not None:
        values["config"] = values["config"] | {"weight_dtype": dtype}
    # The name of what Orbax has not finished: a run that finds it deletes it.
    name = f"{target.name}.orbax-checkpoint-tmp-reshard"
    try:
        with whole_folder(target, partial=name) as partial:
            written = _copy(step, partial, arrays, chunk_bytes=chunk_bytes, dtype=dtype)
            if (step / SIDE_FILES).is_dir():
                shutil.copytree(step / SIDE_FILES, partial / SIDE_FILES)
            seal(partial, written, values)
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {brief(error)}") from error
    return target


def _copy(
    step: Path,
    target: Path,
    arrays: Mapping[str, Mapping[str, Any]],
    *,
    chunk_bytes: int,
    dtype: str | None,
) -> dict[str, dict[str, Any]]:
    """Copies arrays; returns what the checksums say of them."""
    written: dict[str, dict[str, Any]] = {}
    context = array_context()
    stores = {name: open_array(step, name, context) for name in arrays}
    total = sum(map(num_bytes, stores.values()))
    quiet = 0.2 if sys.stderr.isatty() else _SECONDS_BETWEEN_LINES
    with tqdm(total=total, unit="B", unit_scale=True, mininterval=quiet) as progress:
        for name, store in stores.items():
            is_weight = name.startswith(WEIGHTS)
            kind = dtype if dtype is not None and is_weight else store.dtype.name
            shape = tuple(store.shape)
            itemsize = ts.dtype(kind).numpy_dtype.itemsize
            chunk = chunk_shape(shape, itemsize, most_bytes=chunk_bytes)
            with _writing():
                out = create_array(
                    target, name, shape=shape, dtype=kind, chunk=chunk, context=context
                )
            read = wrote = 0
            for place in places(store):
                piece = np.asarray(read_piece(store, place, name=name))
                checksum = part_checksum(piece, place, shape)
                read += checksum
                progress.update(piece.nbytes)
                if out.dtype != store.dtype:
                    piece = piece.astype(out.dtype.numpy_dtype)
                    checksum = part_checksum(piece, place, shape)
                wrote += checksum
                with _writing():
                    out[place].write(piece).result()
            if read % 2**32 != arrays[name]["checksum"]:
                raise DamagedCheckpoint(f"{step} is damaged: {name} is not what was written")
            written[name] = {"dtype": kind, "shape": list(shape), "checksum": wrote % 2**32}
    return written


@contextlib.contextmanager
def _writing() -> Generator[None]:
    try:
        yield
    except ValueError as error:
        raise CheckpointError(f"cannot be written: {brief(error)}") from error

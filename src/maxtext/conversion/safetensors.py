"""Files of tensors as Hugging Face keeps them: a header in JSON, then numbers.

By hand, as the library's reader maps whole files into memory.

Source: https://huggingface.co/docs/safetensors, "Format".
"""

import dataclasses
import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np

from maxtext.config.huggingface_files import read_object
from maxtext.conversion.errors import ConversionError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_MAX_HEADER_BYTES = 100_000_000
METADATA = "__metadata__"


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor in a file, not read yet.

    Attributes:
        shape: Its shape.
        kind: Its type by the format's name, `BF16`.
        file: Where it lies.
        start: Of its first byte.
    """

    shape: tuple[int, ...]
    kind: str
    file: Path
    start: int

    @property
    def dtype(self) -> np.dtype:
        """Its type.

        Raises:
            ConversionError: It is none of ours.
        """
        if self.kind not in DTYPES:
            raise ConversionError(
                f"{self.file}: tensors of type {self.kind} are not read; only "
                f"{', '.join(DTYPES)} are"
            )
        return DTYPES[self.kind]

    @property
    def num_bytes(self) -> int:
        """Size of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """Its numbers.

        Raises:
            ConversionError: The file ends before they do.
            OSError: The file cannot be read.
        """
        count = math.prod(self.shape)
        with self.file.open("rb") as stream:
            stream.seek(self.start)
            numbers = np.fromfile(stream, self.dtype, count)
        if numbers.size != count:
            raise ConversionError(f"{self.file} is cut short")
        return numbers.reshape(self.shape)


def open_folder(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a model's files by its name; reads headers only.

    Raises:
        ConversionError: Files are missing, damaged, or of another format.
        OSError: A file cannot be read.
    """
    found: dict[str, Tensor] = {}
    for file in _files(folder):
        for name, tensor in _header(file).items():
            if name in found:
                raise ConversionError(f"{name} is in {found[name].file} and in {file}")
            found[name] = tensor
    return found


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        places = read_object(folder / INDEX).get("weight_map")
        names = list(places.values()) if isinstance(places, dict) else [None]
        if not names or not all(
            isinstance(name, str) and name == Path(name).name for name in names
        ):
            raise ConversionError(f"{folder / INDEX} has no weight_map of tensors to files")
        files = [folder / str(name) for name in dict.fromkeys(names)]
    elif (folder / SINGLE).is_file():
        files = [folder / SINGLE]
    else:
        files = sorted(folder.glob("*.safetensors"))
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ConversionError(f"{folder / INDEX} names {missing[0]}, which is not there")
    if not files:
        pickled = sorted(file.name for file in folder.glob("*.bin"))
        hint = (
            f"{pickled[0]} is pickled, which can run any program: convert it to safetensors first"
            if pickled
            else "there must be model.safetensors, or an index that names several"
        )
        raise ConversionError(f"{folder} holds no safetensors; {hint}")
    return files


def _header(file: Path) -> dict[str, Tensor]:
    """The tensors of one file, each within its bounds."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise ConversionError(f"{file} is cut short, or no safetensors file")
        text = stream.read(length)
    try:
        header = json.loads(text)
        header.pop(METADATA, None)
        found = {
            name: Tensor(
                shape=tuple(map(int, one["shape"])),
                kind=str(one["dtype"]),
                file=file,
                start=8 + length + int(one["data_offsets"][0]),
            )
            for name, one in header.items()
        }
        ends = [8 + length + int(one["data_offsets"][1]) for one in header.values()]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ConversionError(f"{file}: its header is damaged") from error
    if max(ends, default=0) > size:
        raise ConversionError(f"{file} is cut short: {size:,} of {max(ends):,} bytes are there")
    for (name, tensor), end in zip(found.items(), ends, strict=True):
        known = tensor.kind in DTYPES
        if any(n < 0 for n in tensor.shape) or (known and tensor.start + tensor.num_bytes != end):
            raise ConversionError(f"{file}: the header of {name} is damaged")
    return found

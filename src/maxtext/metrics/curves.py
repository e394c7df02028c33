"""The curves of a run, read back from its metrics file or its TensorBoard files."""

import itertools
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

# Protocol buffers make their classes when they are imported: no checker sees them.
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore
from tensorboardX.record_writer import masked_crc32c

from maxtext.metrics.step_log import STEP_TAGS

type Curve = dict[int, float]

# A pair of points further apart than this, in usual distances, has something missing between.
_GAP = 2.5
_HEADER_BYTES, _TRAILER_BYTES = 12, 4


def read_run(path: Path) -> dict[str, Curve]:
    """Each curve of a run by its TensorBoard tag: values by step, of a repeated step the last.

    Args:
        path: A metrics file, a TensorBoard file, or a folder that holds either; of a run's folder
            its `tensorboard` counts.

    Raises:
        ValueError: There is nothing of the kind, or it holds something else.
    """
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder")
    files = _files(path)
    if not files:
        raise ValueError(f"{path}: holds no metrics file (*.jsonl) and no TensorBoard files")
    is_board = ".tfevents." in files[0].name
    if len(files) > 1 and not is_board:
        names = ", ".join(file.name for file in files)
        raise ValueError(f"{path}: holds several metrics files, {names}; name the one of the run")
    try:
        curves = _read_boards(files) if is_board else _read_lines(files[0])
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if not curves:
        raise ValueError(f"{path}: no step is reported in it yet")
    return curves


def pieces(curve: Curve) -> list[tuple[list[int], list[float]]]:
    """Steps and values of a curve, ascending, cut where steps are missing."""
    steps = sorted(curve)
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    most = _GAP * statistics.median(gaps) if gaps else 0
    ends = [n + 1 for n, gap in enumerate(gaps) if gap > most] + [len(steps)]
    parts = [steps[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return [(part, [curve[step] for step in part]) for part in parts]


def run_names(paths: Sequence[Path]) -> list[str]:
    """What the runs are called: as short as tells them apart."""
    parts = [path.absolute().with_suffix("").parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{path} ({number})" for number, path in enumerate(paths, start=1)]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    for folder, pattern in (
        (path, "*.jsonl"),
        (path, "*.tfevents.*"),
        (path / "tensorboard", "*.tfevents.*"),
    ):
        if found := sorted(folder.glob(pattern)):
            return found
    return []


def _read_lines(file: Path) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    *whole, torn = file.read_text("utf-8", errors="replace").split("\n")
    # A run that was killed may leave its last line half written.
    for number, line in enumerate([*whole, *filter(_is_whole, [torn])], start=1):
        step, values = _parsed(line, where=f"{file}, line {number}")
        for name, value in values.items():
            curves.setdefault(STEP_TAGS.get(name, name), {})[step] = value
    return curves


def _is_whole(line: str) -> bool:
    return line.endswith("}")


def _parsed(line: str, *, where: str) -> tuple[int, Mapping[str, float]]:
    try:
        values = json.loads(line)
        step = values.pop("step")
        if type(step) is not int:
            raise TypeError(step)
        # Numbers that JSON lacks are text that `float` reads; the digest of a batch is not.
        texts = ("NaN", "Infinity", "-Infinity")
        numbers = {
            name: float(value)
            for name, value in values.items()
            if value in texts or isinstance(value, int | float)
        }
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{where}: something else than metrics") from error
    return step, numbers


def _read_boards(files: Iterable[Path]) -> dict[str, Curve]:
    """All files of a run, in the order they were begun; each drops what it does again."""
    histories = [list(_events(file)) for file in files]
    curves: dict[str, Curve] = {}
    for events in sorted(histories, key=lambda one: one[0].wall_time if one else 0.0):
        for event in events:
            if event.session_log.status == SessionLog.START:
                curves = {
                    tag: {step: value for step, value in curve.items() if step < event.step}
                    for tag, curve in curves.items()
                }
            for value in event.summary.value:
                curves.setdefault(value.tag, {})[event.step] = value.simple_value
    return {tag: curve for tag, curve in curves.items() if curve}


def _events(file: Path) -> Iterator[Event]:
    """The events of a file, up to one that is half written.

    Raises:
        ValueError: It is no TensorBoard file.
    """
    data, at = file.read_bytes(), 0
    while at + _HEADER_BYTES <= len(data):
        start = at + _HEADER_BYTES
        size, check = data[at : at + 8], data[at + 8 : start]
        if masked_crc32c(size) != int.from_bytes(check, "little"):
            raise ValueError(f"{file}: something else than TensorBoard's events")
        end = start + int.from_bytes(size, "little")
        if end + _TRAILER_BYTES > len(data):
            return
        yield Event.FromString(data[start:end])
        at = end + _TRAILER_BYTES

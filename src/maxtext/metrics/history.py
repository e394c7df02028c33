"""The JSONL file of a run: one flushed line a step, in full precision."""

import contextlib
import itertools
import json
import math
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import IO

# Every line starts so; whatever does not is a file of somebody else.
_START = '{"step": '


def json_line(step: int, values: Mapping[str, int | float | str]) -> str:
    """One line of valid JSON; numbers that JSON lacks become text that `float` reads."""
    return json.dumps({"step": step} | {k: _json_value(v) for k, v in values.items()}) + "\n"


def open_history(path: str, *, start_step: int) -> IO[str]:
    """The metrics file, open for appending, without the lines of `start_step` and later.

    A run that resumes writes those again, so that each step has one line. Where none would be
    left, as in a new run, the old file is kept as `<path>.1`, or the next free number.

    Raises:
        ValueError: The file cannot be written, or holds something else than metrics.
    """
    file = Path(os.path.expanduser(path))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            _cut(file, start_step)
        return file.open("a", encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"metrics_file={path} cannot be written: {error.strerror}; name another file"
        ) from error


@contextlib.contextmanager
def writing(path: str) -> Generator[None]:
    """Puts the path into an OSError of the block: those of a full disk come without."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _json_value(value: float | str) -> int | float | str:
    if isinstance(value, str) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _step(line: str) -> int | None:
    """The step of a line; None where it is no line of metrics."""
    try:
        step = json.loads(line)["step"] if line.startswith(_START) else None
    except (ValueError, RecursionError):
        return None
    return step if type(step) is int else None


def _cut(file: Path, start_step: int) -> None:
    *whole, torn = file.read_text(encoding="utf-8", errors="replace").split("\n")
    steps = [_step(line) for line in whole]
    # A run that was killed may leave its last line half written.
    strange = [number for number, step in enumerate(steps, start=1) if step is None]
    if not torn.startswith(_START[: len(torn)]):
        strange.append(len(whole) + 1)
    if strange:
        raise ValueError(
            f"metrics_file={file} holds something else than metrics (line {strange[0]}); name "
            "another file"
        )
    kept = [
        f"{line}\n"
        for line, step in zip(whole, steps, strict=True)
        if step is not None and step < start_step
    ]
    if len(kept) == len(whole) and not torn:
        return
    if whole and not kept:
        numbered = (file.with_name(f"{file.name}.{number}") for number in itertools.count(1))
        file.rename(next(path for path in numbered if not path.exists()))
        return
    replacement = file.with_name(f"{file.name}.partial")
    with replacement.open("w", encoding="utf-8") as out:
        out.writelines(kept)
        out.flush()
        os.fsync(out.fileno())
    replacement.replace(file)

"""Trains a model: `python -m maxtext.train [file.yml] key=value ...`."""

import contextlib
import logging
import sys
from collections.abc import Generator, Sequence

from maxtext.config.cli import run_main
from maxtext.config.load import Loaded


def main(argv: Sequence[str]) -> int:
    """Trains as `argv` (without the program's name) says; returns the exit code."""
    return run_main(argv, _train, program="maxtext.train")


def _train(loaded: Loaded) -> None:
    # Imported here: jax takes seconds that help and errors need not wait for.
    from maxtext.checkpoint import CheckpointError
    from maxtext.training.loop import train
    from maxtext.training.recorder import NonFiniteError

    try:
        with _log_to_stdout():
            train(loaded.config)
    except (CheckpointError, NonFiniteError) as error:
        sys.exit(f"error: {error}")


@contextlib.contextmanager
def _log_to_stdout() -> Generator[None]:
    """What the package logs inside the block, as plain lines; nothing stays after it."""
    log = logging.getLogger("maxtext")
    before = log.level, log.propagate
    handler = logging.StreamHandler(sys.stdout)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

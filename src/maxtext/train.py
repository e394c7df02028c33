"""Trains a model: `python -m maxtext.train [file.yml] key=value ...`."""

import contextlib
import logging
import sys
from collections.abc import Generator, Sequence
from typing import TextIO

from maxtext.config.cli import abandon_stdout, run_main
from maxtext.config.load import Loaded


def main(argv: Sequence[str]) -> int:
    """Trains as `argv` (without the program's name) says; returns the exit code."""
    return run_main(argv, _train, program="maxtext.train")


def _train(loaded: Loaded) -> None:
    # Imported here: jax takes seconds that help and errors need not wait for.
    from maxtext.checkpoint.errors import CheckpointError
    from maxtext.training.compiling import compile_only
    from maxtext.training.loop import train
    from maxtext.training.recorder import NonFiniteError

    try:
        with _log_to_stdout():
            (compile_only if loaded.config.training.compile_only else train)(loaded.config)
    except (CheckpointError, NonFiniteError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        sys.exit(f"error: {error.strerror or error}{where}")
    except (MemoryError, RuntimeError) as error:
        # XLA has no narrower type for it.
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        sys.exit(
            "error: out of memory; lower per_device_batch_size or max_target_length, split the "
            "model over more devices, or use remat_policy=full"
        )


class _Lines(logging.StreamHandler[TextIO]):
    """Plain lines to stdout; a run goes on when nobody can read them any more."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            abandon_stdout(error)
        else:
            super().handleError(record)


@contextlib.contextmanager
def _log_to_stdout() -> Generator[None]:
    """What the package logs inside the block, as plain lines; nothing stays after it."""
    log = logging.getLogger("maxtext")
    before = log.level, log.propagate
    handler = _Lines(sys.stdout)
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

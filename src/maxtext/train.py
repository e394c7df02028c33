"""Trains a model: `python -m maxtext.train [file.yml] key=value ...`."""

import logging
import sys
from collections.abc import Sequence

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

    log = logging.getLogger("maxtext")
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler(sys.stdout))
    log.propagate = False
    try:
        train(loaded.config)
    except (CheckpointError, NonFiniteError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

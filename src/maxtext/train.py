"""Trains a model: `python -m maxtext.train [file.yml] key=value ...`."""

import sys
from collections.abc import Sequence

from maxtext.config.cli import run_main
from maxtext.config.load import Loaded


def main(argv: Sequence[str]) -> int:
    """Trains as `argv` (without the program's name) says; returns the exit code."""
    return run_main(argv, _train, program="maxtext.train")


def _train(loaded: Loaded) -> None:
    # Imported here: jax takes seconds that help and errors need not wait for.
    from maxtext.training.loop import train

    train(loaded.config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Looks into checkpoints: `python -m maxtext.checkpoint inspect|diff|reshard ...`."""

import sys
from collections.abc import Sequence

from maxtext.checkpoint.commands import parser
from maxtext.checkpoint.errors import CheckpointError
from maxtext.config.cli import exit_code, whole_stdout


def main(argv: Sequence[str]) -> int:
    """Does what `argv` (without the program's name) says; returns the exit code."""
    options = parser().parse_args(argv)

    def run() -> int:
        with whole_stdout():
            return options.run(options)

    return exit_code(run, CheckpointError)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

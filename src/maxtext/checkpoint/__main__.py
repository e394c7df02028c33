"""Looks into checkpoints: `python -m maxtext.checkpoint inspect|diff|reshard ...`."""

import sys
from collections.abc import Sequence

from maxtext.checkpoint.commands import parser
from maxtext.checkpoint.errors import CheckpointError
from maxtext.config.cli import whole_stdout

_BAD_INPUT = 2
_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Does what `argv` (without the program's name) says; returns the exit code."""
    options = parser().parse_args(argv)
    try:
        with whole_stdout():
            return options.run(options)
    except CheckpointError as error:
        sys.stderr.write(f"error: {error}\n")
        return _BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

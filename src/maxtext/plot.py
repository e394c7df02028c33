"""Plots runs to one picture: `python -m maxtext.plot RUN ... [--out FILE.png]`."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from maxtext.config.cli import Parser, whole_stdout

_BAD_INPUT = 2


def main(argv: Sequence[str]) -> int:
    """Draws what `argv` (without the program's name) says; returns the exit code."""
    parser = Parser(
        prog="python -m maxtext.plot",
        description="Draws loss, evaluation loss, gradient norm and throughput of runs.",
    )
    about = "a run's folder, its TensorBoard folder, or its metrics file (JSON Lines)"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=about)
    parser.add_argument("--out", default="plot.png", help="the picture: .png, .pdf or .svg")
    options = parser.parse_args(argv)
    out = Path(os.path.expanduser(options.out))
    if out.suffix not in (".png", ".pdf", ".svg"):
        parser.error(f"--out {options.out}: must end in .png, .pdf or .svg")
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("plots need matplotlib: pip install 'maxtext[plot]'")
    # Imported here: they take time that help and errors need not wait for.
    from maxtext.metrics.curves import read_run, run_names
    from maxtext.metrics.figure import draw

    try:
        paths = [Path(os.path.expanduser(run)) for run in options.runs]
        draw(dict(zip(run_names(paths), map(read_run, paths), strict=True)), out)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return _BAD_INPUT
    except OSError as error:
        sys.stderr.write(f"error: {out} cannot be written: {error.strerror}\n")
        return _BAD_INPUT
    with whole_stdout():
        print(f"written to {out}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

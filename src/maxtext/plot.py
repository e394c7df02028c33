"""Plots runs to one picture: `python -m maxtext.plot RUN ... [--out FILE.png]`."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from maxtext.config.cli import Parser, exit_code, whole_stdout


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
        parser.error("plots need matplotlib: pip install matplotlib")
    return exit_code(
        lambda: _plot([Path(os.path.expanduser(run)) for run in options.runs], out), ValueError
    )


def _plot(runs: list[Path], out: Path) -> None:
    # Imported here: they take time that help and errors need not wait for.
    from maxtext.metrics.curves import read_run, run_names
    from maxtext.metrics.figure import draw

    curves = dict(zip(run_names(runs), map(read_run, runs), strict=True))
    try:
        draw(curves, out)
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error.strerror}") from error
    with whole_stdout():
        print(f"written to {out}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The commands of `python -m maxtext.checkpoint`, each of which imports what it needs."""

import argparse
import json
from pathlib import Path

from maxtext.config.cli import Parser

_PATH = "a run's folder, its checkpoints (the newest step counts), or one step"
_MIB = 2**20


def parser() -> argparse.ArgumentParser:
    """The command line; `run` of what it parses does the work and returns the exit code."""
    whole = Parser(
        prog="python -m maxtext.checkpoint", description="Looks into checkpoints and rewrites them."
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("inspect", help="what a checkpoint holds")
    one.add_argument("path", help=_PATH)
    one.add_argument("--json", action="store_true", help="all of it as one JSON object")
    one.set_defaults(run=_inspect)

    one = commands.add_parser("diff", help="in what two differ; exit code 1 if they do")
    one.add_argument("first", help=_PATH)
    one.add_argument("second", help="another")
    one.add_argument("--params-only", action="store_true", help="compare weights alone")
    one.set_defaults(run=_diff)

    one = commands.add_parser("reshard", help="write a step again: in other chunks, weights alone")
    one.add_argument("source", help=_PATH)
    one.add_argument("directory", type=Path, help="folder that gets the step under its number")
    one.add_argument(
        "--chunk-mib",
        type=_size,
        default=64,
        help="largest chunk; small ones spare many hosts to read what others need (default 64)",
    )
    one.add_argument("--params-only", action="store_true", help="leave out the optimizer")
    one.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="type of weights; with --params-only"
    )
    one.set_defaults(run=_reshard, error=one.error)
    return whole


def _size(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return number


def _inspect(options: argparse.Namespace) -> int:
    from maxtext.checkpoint.inspecting import report, report_text

    values = report(options.path)
    print(json.dumps(values) if options.json else report_text(values), flush=True)
    return 0


def _diff(options: argparse.Namespace) -> int:
    from maxtext.checkpoint.comparing import differences

    number = 0
    for line in differences(options.first, options.second, params_only=options.params_only):
        print(line, flush=True)
        number += 1
    if not number:
        print("equal")
    return 1 if number else 0


def _reshard(options: argparse.Namespace) -> int:
    if options.dtype and not options.params_only:
        options.error("--dtype changes weights, not the optimizer: add --params-only")
    from maxtext.checkpoint.resharding import reshard

    written = reshard(
        options.source,
        options.directory,
        chunk_bytes=round(options.chunk_mib * _MIB),
        params_only=options.params_only,
        dtype=options.dtype,
    )
    print(f"written to {written}")
    return 0

"""Weights of other projects to checkpoints and back: `python -m maxtext.convert --help`."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from maxtext.checkpoint.errors import CheckpointError
from maxtext.config.cli import exit_code
from maxtext.config.filesystem import folder_faults
from maxtext.conversion.errors import ConversionError

_USAGE = """\
usage: python -m maxtext.convert from_hf MODEL OUT
       python -m maxtext.convert from_gguf FILE OUT
       python -m maxtext.convert from_maxtext CHECKPOINT OUT model_name=NAME [KEY=VALUE] ...
       python -m maxtext.convert to_hf CHECKPOINT OUT

MODEL is a Hugging Face folder, with config.json, safetensors and tokenizer, or a name on the hub.
FILE is a GGUF file. CHECKPOINT is a run's folder or one step of it; for from_maxtext it is upstream
MaxText's, which does not say what its model is. OUT is a new folder: a checkpoint for
load_parameters_path, or a Hugging Face model.
"""
_VERBS = ("from_hf", "from_gguf", "from_maxtext", "to_hf")


def main(argv: Sequence[str]) -> int:
    """Converts as `argv` (without the program's name) says; returns the exit code."""
    if "--help" in argv or "-h" in argv:
        sys.stdout.write(_USAGE)
        return 0
    return exit_code(lambda: _convert(*argv), CheckpointError, ConversionError)


def _convert(verb: str = "", source: str = "", out: str = "", *rest: str) -> None:
    if verb not in _VERBS:
        raise ConversionError(f"{verb or 'nothing'} is no conversion: {', '.join(_VERBS)} are")
    if not source or not out:
        raise ConversionError(f"{verb} needs what to read and a folder to write; see --help")
    if rest and verb != "from_maxtext":
        raise ConversionError(f"{rest[0]}: {verb} takes two words; see --help")
    folder = _new_folder(out)
    # Imported here: jax takes seconds that help and errors need not wait for.
    from maxtext.conversion import commands

    if verb == "from_maxtext":
        commands.from_maxtext(source, folder, rest)
    else:
        getattr(commands, verb)(source, folder)


def _new_folder(out: str) -> Path:
    """The folder to write, known to be possible before a model is read or downloaded.

    Raises:
        ConversionError: It exists, or cannot be written.
    """
    folder = Path(os.path.expanduser(out))
    if os.path.lexists(folder):
        raise ConversionError(f"{out} exists already; name a folder that does not")
    for fault in folder_faults(folder):
        raise ConversionError(f"{out}: {fault}; name a folder that can be written")
    return folder


if __name__ == "__main__":
    # What is unfinished is deleted then, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))

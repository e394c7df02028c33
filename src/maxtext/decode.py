"""Writes on from a prompt: `python -m maxtext.decode [file.yml] key=value ...`."""

import sys
from collections.abc import Sequence

from maxtext.config.cli import run_main, whole_stdout
from maxtext.config.load import Loaded


def main(argv: Sequence[str]) -> int:
    """Prints prompt and continuation as `argv` (without the program's name) says."""
    return run_main(argv, _decode, program="maxtext.decode", model_from_checkpoint=True)


def _decode(loaded: Loaded) -> None:
    # Imported here: jax takes seconds that help and errors need not wait for.
    from maxtext.decoding.generate import load_generator

    prompt = loaded.config.decode.prompt
    pieces = load_generator(loaded.config).stream(prompt)
    first = next(pieces)
    with whole_stdout():
        print(prompt + first, end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print(flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

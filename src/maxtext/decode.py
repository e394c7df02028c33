"""Writes on from prompts: `python -m maxtext.decode [file.yml] key=value ...`."""

import sys
import time
from collections.abc import Sequence

from maxtext.config.cli import run_main, whole_stdout
from maxtext.config.load import Loaded


def main(argv: Sequence[str]) -> int:
    """Prints prompt and continuation as `argv` (without the program's name) says."""
    return run_main(argv, _decode, program="maxtext.decode", model_from_checkpoint=True)


def _decode(loaded: Loaded) -> None:
    began = time.perf_counter()
    # Imported here: jax takes seconds that help and errors need not wait for.
    from maxtext.decoding.load import load_engine, prepare
    from maxtext.decoding.output import rates, results, text
    from maxtext.decoding.prompts import read_prompts

    served = prepare(loaded.config)
    prompts = read_prompts(served.config, served.tokenizer)
    engine = load_engine(served)
    if served.config.decode.prompts_file:
        pieces = results(engine, prompts)
    else:
        pieces = text(engine, prompts[0], echo=not served.config.decode.use_chat_template)
    first = next(pieces)
    with whole_stdout():
        print(first, end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
    print(rates(engine, began=began), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

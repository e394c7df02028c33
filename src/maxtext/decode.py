"""Writes on from prompts: `python -m maxtext.decode [file.yml] key=value ...`."""

import sys
import time
from collections.abc import Sequence

from maxtext.config.attention_dp import announcement
from maxtext.config.cli import print_note, print_pieces, run_main
from maxtext.config.load import Loaded


def main(argv: Sequence[str]) -> int:
    """Prints prompt and continuation as `argv` (without the program's name) says."""
    return run_main(argv, _decode, program="maxtext.decode", model_from_checkpoint=True)


def _decode(loaded: Loaded) -> None:
    began = time.perf_counter()
    # Imported here: jax takes seconds that help and errors need not wait for.
    from maxtext.decoding.load import load_engine, prepare
    from maxtext.decoding.output import answers, rates
    from maxtext.decoding.prompts import read_prompts

    served = prepare(loaded.config)
    print_note(announcement(served.config.mesh, served.config.model))
    prompts = read_prompts(served.config, served.tokenizer)
    engine = load_engine(served)
    print_pieces(answers(engine, prompts, served.config.decode))
    print_note(rates(engine, began=began))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Writes on from prompts by vLLM: `python -m maxtext.vllm_decode [file.yml] key=value ...`."""

import functools
import sys
import time
from collections.abc import Sequence

from maxtext.config.attention_dp import announcement
from maxtext.config.cli import print_note, print_pieces, run_main
from maxtext.config.load import Loaded


def main(argv: Sequence[str]) -> int:
    """Prints prompt and continuation as `argv` (without the program's name) says."""
    run = functools.partial(_decode, argv)
    return run_main(argv, run, program="maxtext.vllm_decode", model_from_checkpoint=True)


def _decode(argv: Sequence[str], loaded: Loaded) -> None:
    began = time.perf_counter()
    from maxtext.integrations.vllm.environment import require_installed, set_up_environment

    require_installed()
    set_up_environment()
    # Imported here: what they import reads the environment, and takes seconds.
    from maxtext.decoding.output import answers, rates
    from maxtext.decoding.prompts import read_prompts
    from maxtext.integrations.vllm.load import load_vllm_engine
    from maxtext.integrations.vllm.tokenizer import with_tokenizer

    config, tokenizer = with_tokenizer(loaded.config)
    print_note(announcement(config.mesh, config.model))
    prompts = read_prompts(config, tokenizer)
    engine = load_vllm_engine(config, tokenizer, argv)
    try:
        print_pieces(answers(engine, prompts, config.decode))
        print_note(rates(engine, began=began))
    finally:
        engine.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

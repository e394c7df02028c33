"""What `maxtext.decode` cannot do, found from the config alone."""

from collections.abc import Iterator

from maxtext.config.errors import Clash
from maxtext.config.schema import Config


def clashes(config: Config) -> Iterator[Clash]:
    """Everything wrong with what is asked of the engine."""
    decode = config.decode
    if decode.decode_logprobs >= 0 and not decode.prompts_file:
        message = "would be ignored: they are printed with prompts_file only"
        yield Clash(("decode_logprobs",), message, "put the prompt into a file")
    vocab_size = config.model.vocab_size
    if not all(one.isdecimal() and int(one) < vocab_size for one in decode.decode_eos_ids):
        message = f"tokens of this model are 0 to {vocab_size - 1}"
        yield Clash(("decode_eos_ids", "vocab_size"), message)

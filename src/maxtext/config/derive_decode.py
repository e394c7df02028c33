"""What `maxtext.decode` and `maxtext.vllm_decode` cannot do, found from the config alone."""

import json
from collections.abc import Iterator, Set

from maxtext.config.errors import Clash
from maxtext.config.schema import Config


def clashes(config: Config, user_keys: Set[str]) -> Iterator[Clash]:
    """Everything wrong with what is asked of the engine."""
    for key in ("ici_pipeline_parallelism", "dcn_pipeline_parallelism"):
        if getattr(config.mesh, key) not in (0, 1):
            message = "stages are for training: tokens are sampled one by one"
            hint = f"set {key}=1; ici_tensor_parallelism splits a model over devices"
            yield Clash((key,), message, hint)
    decode = config.decode
    if decode.decode_logprobs >= 0 and not decode.prompts_file:
        message = "would be ignored: they are printed with prompts_file only"
        yield Clash(("decode_logprobs",), message, "put the prompt into a file")
    if decode.prompts_file and decode.prompt and "prompt" in user_keys:
        message = "would be ignored: prompts_file says what to go on from"
        yield Clash(("prompt", "prompts_file"), message, "give one of them; prompt= gives none")
    if config.run.debug_sharding and not config.run.run_name:
        message = "writes into the folder of the run, and run_name is empty"
        yield Clash(("debug_sharding", "run_name"), message, "give a run_name")
    vocab_size = config.model.vocab_size
    if not all(one.isdecimal() and int(one) < vocab_size for one in decode.decode_eos_ids):
        message = f"tokens of this model are 0 to {vocab_size - 1}"
        yield Clash(("decode_eos_ids", "vocab_size"), message)
    yield from _vllm(config, user_keys)


def _vllm(config: Config, user_keys: Set[str]) -> Iterator[Clash]:
    names = ("hbm_utilization_vllm", "gpu_memory_utilization")
    if all(name in user_keys for name in names):
        yield Clash(names, "are two names of one setting", "keep one")
    try:
        found = json.loads(config.vllm.vllm_additional_config)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        yield Clash(("vllm_additional_config",), 'must be a JSON object, such as {"key": 1}')

"""A config to vLLM's engine."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from maxtext.config.attention_dp import AttentionDP, attention_dp
from maxtext.config.derive import divisors, listed
from maxtext.config.errors import ConfigError, Problem
from maxtext.config.schema import DEGREES, Config
from maxtext.conversion.side_files import write_json
from maxtext.data.tokenizer import Tokenizer
from maxtext.decoding.requests import MAX_LOGPROBS
from maxtext.integrations.vllm.engine import VllmEngine
from maxtext.integrations.vllm.layout import data_degree
from maxtext.integrations.vllm.model import ARGUMENTS
from maxtext.integrations.vllm.quiet import stdout_to_stderr
from maxtext.integrations.vllm.sizes import model_json
from maxtext.integrations.vllm.worker import EXTENSION
from maxtext.models.backend import config_errors, resolve, set_up_jax

# tpu-inference has room for so many requests at least, and each of its ranks has an equal part.
_FEWEST = 8


def load_vllm_engine(config: Config, tokenizer: Tokenizer, arguments: Sequence[str]) -> VllmEngine:
    """An engine with the weights of `load_parameters_path`, or of the run's newest checkpoint.

    Args:
        config: As `load` made it of them.
        tokenizer: The one that counts.
        arguments: Our command line, by which the model finds its weights in whatever process.

    Raises:
        ConfigError: vLLM cannot do what is asked for, or as `load_engine`.
    """
    set_up_jax(config.run, config.compute)
    problems = list(_refused(config))
    if problems:
        raise ConfigError(problems)
    with config_errors(), stdout_to_stderr(), tempfile.TemporaryDirectory() as folder:
        from vllm.engine.arg_utils import EngineArgs  # pyright: ignore[reportMissingImports]
        from vllm.v1.engine.llm_engine import LLMEngine  # pyright: ignore[reportMissingImports]

        write_json(Path(folder, "config.json"), model_json(config))
        given = engine_arguments(config, arguments, folder)
        engine = LLMEngine.from_engine_args(EngineArgs(**given))
    return VllmEngine(
        engine,
        decode=tokenizer.decode,
        vocab_size=tokenizer.vocab_size,
        max_length=config.data.max_target_length,
        seed=config.decode.decode_seed,
    )


def engine_arguments(config: Config, arguments: Sequence[str], folder: str) -> dict[str, Any]:
    """The settings of vLLM itself."""
    decode, data = config.decode, config.data
    dp, copies = attention_dp(config.mesh, config.model), data_degree(config)
    compute = resolve(
        config.compute.model_copy(update={"attention": "dot_product"}),
        config.model,
        backend=jax.default_backend(),
        length=data.max_target_length,
    )
    ranks = copies * dp.attn_dp
    sequences = -(-decode.max_num_seqs // ranks)
    if _FEWEST % ranks and sequences * ranks < _FEWEST:
        sequences = -(-_FEWEST // ranks)
    return {
        "model": folder,
        "skip_tokenizer_init": True,
        "dtype": compute.dtype if decode.decode_dtype == "auto" else decode.decode_dtype,
        "tensor_parallel_size": dp.model * dp.attn_dp,
        "data_parallel_size": copies,
        "max_model_len": data.max_target_length,
        "block_size": decode.page_size,
        "num_gpu_blocks_override": _num_pages(config, ranks, sequences),
        "gpu_memory_utilization": config.vllm.memory_utilization,
        "max_num_seqs": sequences,
        "max_num_batched_tokens": max(decode.max_num_batched_tokens, sequences),
        "enable_prefix_caching": decode.enable_prefix_caching,
        "max_logprobs": MAX_LOGPROBS,
        "seed": decode.decode_seed,
        # See `require_synchronous`, which refuses it.
        "async_scheduling": False,
        "worker_extension_cls": EXTENSION,
        "additional_config": _additional(config, arguments, dp),
    }


def _num_pages(config: Config, ranks: int, sequences: int) -> int | None:
    """Pages of the cache, of all ranks; None leaves it to vLLM, which fills a device's memory."""
    decode = config.decode
    if decode.num_pages < 0 and jax.default_backend() == "tpu":
        return None
    table = -(-config.data.max_target_length // decode.page_size)
    pages = sequences * table if decode.num_pages < 0 else decode.num_pages // ranks
    # vLLM keeps one page of each rank for padding.
    return (pages + 1) * ranks


def _additional(config: Config, arguments: Sequence[str], dp: AttentionDP) -> dict[str, Any]:
    """The user's `additional_config`, and what carries our settings.

    The degree is passed as it is: tpu-inference would derive another.
    """
    asked = json.loads(config.vllm.vllm_additional_config)
    strategy: dict[str, Any] = {"enable_dp_attention": dp.attn_dp > 1}
    if dp.attn_dp > 1:
        strategy["attn_dp_size"] = dp.attn_dp
    sharding = asked.get("sharding", {})
    strategy |= sharding.get("sharding_strategy", {})
    sharding = {**sharding, "sharding_strategy": strategy}
    return {**asked, "sharding": sharding, ARGUMENTS: list(arguments)}


def _refused(config: Config) -> Iterator[Problem]:
    """What `maxtext.decode` does and vLLM's engine on JAX does not."""
    decode = config.decode
    for key, off, hint in (
        ("decode_sampling_min_p", 0.0, "decode_sampling_strategy=nucleus bounds the choice too"),
        ("decode_repetition_penalty", 1.0, "maxtext.decode has it"),
        ("kv_cache_dtype", "auto", "it is that of activations: see decode_dtype"),
    ):
        value = getattr(decode, key)
        if value != off:
            message = "is not supported by vLLM's engine on JAX"
            yield Problem(key, message, value=str(value), hint=hint)
    for name, meaning in DEGREES.items():
        for key in (f"ici_{meaning}_parallelism", f"dcn_{meaning}_parallelism"):
            value = getattr(config.mesh, key)
            fine = ("ici_data_parallelism", "ici_tensor_parallelism")
            if key not in fine and value > 1:
                message = f"the mesh of vLLM has no axis {name}"
                yield Problem(key, message, value=str(value), hint="leave it out")
    yield from _refused_heads(config)


def _refused_heads(config: Config) -> Iterator[Problem]:
    heads, tensor = config.model.num_kv_heads, config.mesh.ici_tensor_parallelism
    if tensor < 1:
        hint = "give their number, such as 8"
        yield Problem("ici_tensor_parallelism", "vLLM has to know it", hint=hint, value="-1")
    elif config.model.num_query_heads % tensor:
        count = config.model.num_query_heads
        message = f"vLLM wants {count} query heads to divide over {tensor} devices"
        hint = f"it may be {listed(divisors(count), near=tensor)}"
        yield Problem("ici_tensor_parallelism", message, value=str(tensor), hint=hint)
    elif attention_dp(config.mesh, config.model).attn_dp == 1 and heads % tensor and tensor % heads:
        message = f"{heads} key and value heads neither divide over {tensor} devices nor divide it"
        hint = "enable_dp_attention=true splits requests as well"
        yield Problem("ici_tensor_parallelism", message, value=str(tensor), hint=hint)

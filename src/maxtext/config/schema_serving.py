"""The keys of decoding, serving and planning."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from pydantic import PositiveInt as Positive

from maxtext.config.section import Count, Fraction, Section, Seed, key


class DecodeConfig(Section):
    """`maxtext.decode`: what to write, how to choose tokens, and what the engine holds at once."""

    prompt: str = key("Text to go on from, to the letter; `-` reads it from standard input.")
    prompts_file: str = key(
        "File of prompts in place of `prompt`: a line each, or `.jsonl` with `prompt` "
        "or `messages`, beside them `max_new_tokens`, `seed`, `stop` for this one. One line of "
        "JSON each is printed."
    )
    use_chat_template: bool = key(
        "Take the prompt as what a user says in a chat, and write the answer."
    )
    max_new_tokens: Positive = key("Tokens to generate at most.")
    decode_sampling_strategy: Literal["greedy", "weighted", "nucleus", "topk", "composite"] = key(
        "`greedy`: the likeliest; `weighted`: by probability; `nucleus`: among the likeliest that "
        "hold `decode_sampling_nucleus_p`; `topk`: among the `decode_sampling_top_k` likeliest; "
        "`composite`: the last two one after the other."
    )
    decode_sampling_temperature: PositiveFloat = key("Logits are divided by it before sampling.")
    decode_sampling_nucleus_p: Annotated[float, Field(gt=0.0, le=1.0)] = key(
        "For `nucleus` and `composite`."
    )
    decode_sampling_top_k: Positive = key("For `topk` and `composite`.")
    decode_sampling_min_p: Fraction = key(
        "Only tokens at least this part as likely as the likeliest; 0: all. Not for `greedy`."
    )
    decode_repetition_penalty: PositiveFloat = key(
        "Makes tokens that occurred less likely; 1: no penalty."
    )
    decode_seed: Seed = key("Seed of sampling; prompts of a file count up from it.")
    decode_eos_ids: tuple[str, ...] = key(
        "Ids of the tokens that end the text; []: the tokenizer's EOS, and those that a "
        "generation_config.json, or else a config.json, beside it names."
    )
    ignore_eos: bool = key("Go on after tokens that end the text.")
    stop_strings: tuple[str, ...] = key("Texts that end the text; they are not printed.")
    decode_logprobs: Annotated[int, Field(ge=-1, le=20)] = key(
        "Log probabilities that `prompts_file` prints for each token: its own, and so many of the "
        "likeliest. -1: none."
    )
    decode_dtype: Literal["auto", "float32", "bfloat16", "float16"] = key(
        "Type of weights and activations in decoding; `auto` is `dtype`."
    )
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = key(
        "Type of cached keys and values; `auto` is that of activations. int8 keeps a scale for "
        "each token and head."
    )
    page_size: Positive = key("Tokens of a page of the cache.")
    num_pages: Count = key(
        "Pages of the cache, of all devices that split requests together. -1: what "
        "`max_num_seqs` of `max_target_length` need, as far as `kv_cache_memory_fraction` allows."
    )
    kv_cache_memory_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = key(
        "Part of the memory that is free once weights are loaded which the cache may take."
    )
    max_num_seqs: Positive = key("Requests that run at once; more wait.")
    max_num_batched_tokens: Positive = key(
        "Tokens of a step for each device that splits requests; longer prompts take several."
    )
    enable_prefix_caching: bool = key("Compute what prompts begin with in common once.")


class VllmConfig(Section):
    """`maxtext.vllm_decode`: what vLLM's engine is told beside the keys of decoding."""

    hf_model_name: str = key(
        "Hugging Face folder, or model of the hub, whose tokenizer is used; empty: that of "
        "`tokenizer_path`."
    )
    hf_config_path: str = key(
        "Folder of a config.json with more of what vLLM is told of the model; its sizes must be "
        "the model's."
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] = key(
        "Part of a TPU's memory that weights and cache may take together; the cache gets what is "
        "left of it where `num_pages` is -1."
    )
    hbm_utilization_vllm: Fraction = key("Another name of `gpu_memory_utilization`; 0: see there.")
    vllm_additional_config: str = key(
        'vLLM\'s `additional_config` as JSON, such as `{"max_decode_steps": 8}`.'
    )

    @property
    def memory_utilization(self) -> float:
        """That part, by whichever name."""
        return self.hbm_utilization_vllm or self.gpu_memory_utilization


class ServeConfig(Section):
    """`maxtext.serve`: where it listens and what it takes on."""

    serve_host: str = key("Address to listen on; `0.0.0.0` is all of this machine's.")
    serve_port: Annotated[int, Field(ge=0, le=65535)] = key("Port to listen on; 0: a free one.")
    served_model_name: str = key(
        "What clients call the model; empty: `run_name`, or the last part of "
        "`load_parameters_path`."
    )
    serve_max_body_bytes: Positive = key("Bytes of a request at most.")
    serve_max_tokens: Count = key(
        "New tokens of an answer at most; -1: as many as `max_target_length` has room for."
    )
    serve_max_waiting: NonNegativeInt = key(
        "Requests that may wait while `max_num_seqs` run; more are refused with status 429."
    )
    serve_timeout_seconds: PositiveFloat = key(
        "Seconds from a request's arrival to the end of its answer at most."
    )
    serve_warm_up: bool = key(
        "Compile all shapes of steps before the first request, rather than when they come up."
    )


class PlanConfig(Section):
    """`maxtext.plan`: the devices that a config is planned for, which need not be there."""

    plan_device: Literal[
        "",
        "v4",
        "v5e",
        "v5p",
        "v6e",
        "tpu7x",
        "a100-40gb",
        "a100-80gb",
        "h100",
        "h200",
        "b200",
    ] = key("Their kind: a TPU chip, half of one for `tpu7x`, or a GPU.")
    plan_num_devices: Count = key(
        "How many there are. -1: the product of the degrees of parallelism."
    )
    hbm_gib: NonNegativeFloat = key(
        "Memory of one that weights, cache and all else may take, in GiB; 0: what its kind has."
    )

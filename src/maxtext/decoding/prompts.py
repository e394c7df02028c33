"""Prompts of the command line, of a file or of standard input, as requests."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from maxtext.config.errors import ConfigError, Problem
from maxtext.config.schema import Config
from maxtext.config.schema_serving import DecodeConfig
from maxtext.data.chat import message_fault
from maxtext.data.chat_template import Message
from maxtext.data.tokenizer import Tokenizer
from maxtext.decoding.encoding import Encoder, load_encoder
from maxtext.decoding.requests import Request, Sampling
from maxtext.models.backend import config_errors

_OWN = ("max_new_tokens", "seed", "stop")


@dataclasses.dataclass(frozen=True)
class Prompt:
    """What to go on from.

    Attributes:
        place: Where it stands, for messages; also the key that is to blame.
        text: As given, or the last message.
        request: Its tokens, and how to go on.
    """

    place: str
    text: str
    request: Request


def read_prompts(config: Config, tokenizer: Tokenizer) -> list[Prompt]:
    """The prompts that `config` names.

    Raises:
        ConfigError: A prompt is none, or is too long for what it asks for.
    """
    decode = config.decode
    with config_errors():
        encoder = load_encoder(config, tokenizer)
        sampling = _sampling(decode, encoder.eos_ids)
        if decode.prompts_file:
            entries = _entries(decode.prompts_file)
        else:
            text = decode.prompt
            text = sys.stdin.read().removesuffix("\n") if text == "-" else text
            entries = [("prompt", {"prompt": text})]
        prompts: list[Prompt] = []
        for number, (place, entry) in enumerate(entries):
            own = dataclasses.replace(sampling, seed=(sampling.seed + number) % 2**31)
            found = _prompt(entry, place, own, encoder, chat=decode.use_chat_template)
            prompts.append(_checked(found, config))
        return prompts


def _sampling(decode: DecodeConfig, eos_ids: tuple[int, ...]) -> Sampling:
    """How the keys say that tokens are chosen."""
    strategy = decode.decode_sampling_strategy
    return Sampling(
        max_new_tokens=decode.max_new_tokens,
        temperature=0.0 if strategy == "greedy" else decode.decode_sampling_temperature,
        top_k=decode.decode_sampling_top_k if strategy in ("topk", "composite") else 0,
        top_p=decode.decode_sampling_nucleus_p if strategy in ("nucleus", "composite") else 1.0,
        min_p=decode.decode_sampling_min_p,
        repetition_penalty=decode.decode_repetition_penalty,
        seed=decode.decode_seed,
        eos_ids=eos_ids,
        ignore_eos=decode.ignore_eos,
        stop=decode.stop_strings,
        logprobs=None if decode.decode_logprobs < 0 else decode.decode_logprobs,
    )


def _prompt(
    entry: dict[str, Any], place: str, sampling: Sampling, encoder: Encoder, *, chat: bool
) -> Prompt:
    """The prompt of an entry; `chat` takes a text for what a user says in one."""
    unknown = entry.keys() - {"prompt", "messages", *_OWN}
    if unknown or ("prompt" in entry) == ("messages" in entry):
        raise ValueError(
            f"{place}: must have prompt or messages, beside them {', '.join(_OWN)} and "
            f"nothing else; it has {', '.join(entry) or 'nothing'}"
        )
    try:
        sampling = dataclasses.replace(sampling, **_own(entry))
        text = entry.get("prompt")
        if "messages" in entry:
            messages = _messages(entry["messages"])
            return Prompt(place, messages[-1]["content"], Request(encoder.chat(messages), sampling))
        if not isinstance(text, str):
            raise ValueError(f"prompt must be text, not {type(text).__name__}")
        tokens = encoder.chat([{"role": "user", "content": text}]) if chat else encoder.text(text)
        return Prompt(place, text, Request(tokens, sampling))
    except ValueError as error:
        # A half of a pair of surrogates, which JSON may hold.
        reason = "is not text in UTF-8" if isinstance(error, UnicodeError) else error
        raise ValueError(f"{place}: {reason}") from error


def _own(entry: dict[str, Any]) -> dict[str, Any]:
    """What an entry itself says about how to go on."""
    own = {name: entry[name] for name in _OWN if name in entry}
    for name in own.keys() - {"stop"}:
        if type(own[name]) is not int:
            raise ValueError(f"{name} must be a whole number, not {json.dumps(own[name])}")
    if "stop" in own:
        stop = own["stop"]
        texts = [stop] if isinstance(stop, str) else stop
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"stop must be a text or a list of texts, not {json.dumps(stop)}")
        own["stop"] = tuple(texts)
    return own


def _messages(value: object) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"messages must be a list of messages, not {json.dumps(value)}")
    for number, message in enumerate(value, 1):
        if fault := message_fault(message):
            raise ValueError(f"message {number} of 'messages'{fault}")
    return value


def _entries(path: str) -> list[tuple[str, dict[str, Any]]]:
    """The entries of a file, and where each stands."""
    try:
        # `splitlines` would also cut at characters that JSON may hold, such as U+2028.
        lines = Path(os.path.expanduser(path)).read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise ValueError(f"prompts_file={path} cannot be read: {reason}") from error
    entries: list[tuple[str, dict[str, Any]]] = []
    for number, line in enumerate(lines, 1):
        place = f"{path}:{number}"
        if not line.strip():
            continue
        entry: Any = {"prompt": line}
        if path.endswith(".jsonl"):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{place}: no JSON: {error}") from error
            if not isinstance(entry, dict):
                raise ValueError(f"{place}: must be a JSON object")
        entries.append((place, entry))
    if not entries:
        raise ValueError(f"prompts_file={path} has no prompts")
    return entries


def _checked(prompt: Prompt, config: Config) -> Prompt:
    """The prompt, if it and what it asks for fit."""
    tokens, new = len(prompt.request.tokens), prompt.request.sampling.max_new_tokens
    if not tokens:
        message = "is empty, and add_bos=false gives no token"
        raise ConfigError([Problem(prompt.place, message)])
    most = config.data.max_target_length
    if tokens + new > most:
        message = (
            f"{tokens} tokens of the prompt and max_new_tokens={new} "
            f"exceed max_target_length={most}"
        )
        hint = "shorten the prompt, lower max_new_tokens or raise max_target_length"
        raise ConfigError([Problem(prompt.place, message, hint=hint)])
    return prompt

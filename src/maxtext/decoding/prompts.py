"""Prompts of the command line, of a file or of standard input, as requests."""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maxtext.config.errors import ConfigError, Problem
from maxtext.config.huggingface_files import GENERATION_CONFIG, read_object
from maxtext.config.schema import Config
from maxtext.config.schema_serving import DecodeConfig
from maxtext.config.values import Json
from maxtext.data.chat import message_fault
from maxtext.data.chat_template import Message
from maxtext.data.opening import find_chat_template
from maxtext.data.tokenizer import Tokenizer
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
        encode = _Encoder(config, tokenizer)
        sampling = sampling_from_config(decode, encode.eos_ids)
        if decode.prompts_file:
            return [
                _checked(encode.prompt(entry, place, sampling, number), config)
                for number, (place, entry) in enumerate(_entries(decode.prompts_file))
            ]
        text = decode.prompt
        if text == "-":
            text = sys.stdin.read().removesuffix("\n")
        return [_checked(encode.prompt({"prompt": text}, "prompt", sampling, 0), config)]


def sampling_from_config(decode: DecodeConfig, eos_ids: Sequence[int]) -> Sampling:
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
        eos_ids=tuple(map(int, decode.decode_eos_ids or eos_ids)),
        ignore_eos=decode.ignore_eos,
        stop=decode.stop_strings,
        logprobs=None if decode.decode_logprobs < 0 else decode.decode_logprobs,
    )


class _Encoder:
    """Text and messages to tokens."""

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        """Raises ValueError where a chat template is asked for and there is none."""
        self._tokenizer, self._data = tokenizer, config.data
        self._chat = config.decode.use_chat_template
        self.eos_ids = eos_ids(config, tokenizer)
        self._template = find_chat_template(config.data)
        if self._chat:
            self._require_template("use_chat_template=true")

    def prompt(self, entry: dict[str, Any], place: str, sampling: Sampling, number: int) -> Prompt:
        """The prompt of an entry, the `number`-th of all."""
        unknown = entry.keys() - {"prompt", "messages", *_OWN}
        if unknown or ("prompt" in entry) == ("messages" in entry):
            raise ValueError(
                f"{place}: must have prompt or messages, beside them {', '.join(_OWN)} and "
                f"nothing else; it has {', '.join(entry) or 'nothing'}"
            )
        seed = (sampling.seed + number) % 2**31
        try:
            sampling = dataclasses.replace(sampling, **{"seed": seed, **_own(entry)})
            text, tokens = self._tokens(entry)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        return Prompt(place, text, Request(tuple(tokens), sampling))

    def _tokens(self, entry: dict[str, Any]) -> tuple[str, list[int]]:
        if "messages" in entry:
            return self._chat_tokens(_messages(entry["messages"]))
        text = entry["prompt"]
        if not isinstance(text, str):
            raise ValueError(f"prompt must be text, not {type(text).__name__}")
        if self._chat:
            return self._chat_tokens([{"role": "user", "content": text}])
        tokens = self._tokenizer.encode(text)
        if self._data.add_bos and self._tokenizer.bos_id is not None:
            tokens = [self._tokenizer.bos_id, *tokens]
        return text, tokens

    def _chat_tokens(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        rendered = self._require_template("messages").prompt(messages)
        return messages[-1]["content"], self._tokenizer.encode(rendered)

    def _require_template(self, what: str):  # noqa: ANN202
        if self._template is None:
            raise ValueError(
                f"{what}: the tokenizer has no chat template in tokenizer_config.json or "
                "chat_template.jinja; name a file: chat_template=FILE"
            )
        return self._template


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


def eos_ids(config: Config, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokenizer's EOS, and those of a generation_config.json beside it."""
    found: list[Json] = [tokenizer.eos_id]
    if config.data.tokenizer_type != "byte":
        path = Path(os.path.expanduser(config.data.tokenizer_path))
        folder = path if path.is_dir() else path.parent
        ids = read_object(folder / GENERATION_CONFIG, missing={}).get("eos_token_id")
        found += ids if isinstance(ids, list) else [ids]
    return tuple(sorted({one for one in found if type(one) is int}))


def _entries(path: str) -> list[tuple[str, dict[str, Any]]]:
    """The entries of a file, and where each stands."""
    try:
        # `splitlines` would also cut at characters that JSON may hold, such as U+2028.
        lines = Path(os.path.expanduser(path)).read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
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

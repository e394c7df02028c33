"""What clients may ask for: the fields of OpenAI's requests, checked."""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, override

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic import PositiveInt as Positive

from maxtext.decoding.requests import Sampling
from maxtext.serving.errors import ApiError

# Fields of OpenAI's that change no text here.
_IGNORED = {
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
# Fields of OpenAI's that are not there, and values of them that ask for nothing.
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
_SHOWN = 60
# Below it float32 has no room for logits over temperature: the likeliest token is all there is.
_COLDEST = 1e-5


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _prompts(value: Any) -> list[Any]:
    """A prompt or a list of them: each a text or a list of tokens."""
    prompts: list[Any] = value if isinstance(value, list) else [value]
    if prompts and prompts is value and all(map(_is_token, prompts)):
        prompts = [prompts]
    for one in prompts:
        tokens = isinstance(one, list) and all(map(_is_token, one))
        if not tokens and not isinstance(one, str):
            raise ValueError("must be a text, a list of tokens, or a list of one of them")
    return prompts


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _joined(value: object) -> object:
    """Content in parts as one text."""
    if not isinstance(value, list):
        return value
    texts: list[str] = []
    for part in value:
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                raise ValueError("parts must be texts: this model reads nothing else")
    return "".join(texts)


class StreamOptions(_Part):
    """What is sent beside the text."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Message(_Part):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_joined)]
    name: str = ""
    tool_call_id: str = ""

    @property
    def for_template(self) -> dict[str, Any]:
        """As templates take it: `developer` is OpenAI's new word for `system`."""
        role = "system" if self.role == "developer" else self.role
        beside = {"name": self.name, "tool_call_id": self.tool_call_id}
        given = {name: text for name, text in beside.items() if text}
        return {"role": role, "content": self.content, **given}


class Body(_Part):
    """The fields that completions and chats share; the last four are vLLM's, not OpenAI's.

    Attributes:
        default_tokens: New tokens where none are asked for; None: as many as there is room for.
    """

    default_tokens: ClassVar[int | None] = None

    model: str
    max_tokens: Positive | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    seed: int | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        BeforeValidator(_listed),
        Field(max_length=4),
    ] = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    ignore_eos: bool = False

    @property
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens to name beside each; None: give no probabilities."""
        return None

    @property
    def asked_tokens(self) -> int | None:
        """New tokens that are asked for."""
        return self.max_tokens

    def samplings(self, *, max_new_tokens: int, eos_ids: tuple[int, ...]) -> list[Sampling]:
        """How to draw each of `n` answers."""
        seed = secrets.randbelow(2**31) if self.seed is None else self.seed
        return [
            Sampling(
                max_new_tokens=max_new_tokens,
                temperature=self.temperature if self.temperature >= _COLDEST else 0.0,
                top_k=max(self.top_k, 0),
                top_p=self.top_p,
                min_p=self.min_p,
                repetition_penalty=self.repetition_penalty,
                seed=(seed + number) % 2**31,
                eos_ids=eos_ids,
                ignore_eos=self.ignore_eos,
                stop=tuple(self.stop),
                logprobs=self.num_logprobs,
            )
            for number in range(self.n)
        ]


class CompletionBody(Body):
    """A request to /v1/completions."""

    default_tokens = 16

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts), Field(min_length=1)]
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    @property
    @override
    def num_logprobs(self) -> int | None:
        return self.logprobs


class ChatBody(Body):
    """A request to /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0

    @property
    @override
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    @override
    def asked_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


def parse[T: Body](kind: type[T], content: bytes) -> T:
    """The request that a body holds.

    Null stands for a field's default. Fields that OpenAI does not know are refused.

    Raises:
        ApiError: It is no JSON, or a field is unknown, missing or wrong; it tells of the first.
    """
    try:
        found = pydantic.TypeAdapter(dict[str, Any]).validate_json(content)
    except pydantic.ValidationError as error:
        raise ApiError(400, f"the body must be a JSON object: {_first(error)[1]}") from error
    fields = {
        name: value
        for name, value in _without_nulls(found).items()
        if name not in _IGNORED and name not in _UNSUPPORTED
    }
    for name, harmless in _UNSUPPORTED.items():
        value = found.get(name)
        if value is not None and value not in harmless:
            raise ApiError(400, f"{name} is not supported", name, "unsupported_parameter")
    try:
        body = kind.model_validate(fields)
    except pydantic.ValidationError as error:
        place, message = _first(error)
        raise ApiError(400, message, place) from error
    _check_together(body)
    return body


def _check_together(body: Body) -> None:
    """Raises ApiError for fields that do not go with each other."""
    if body.stream_options and not body.stream:
        raise ApiError(400, "stream_options needs stream=true", "stream_options")
    if isinstance(body, ChatBody) and body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs=true", "top_logprobs")
    if isinstance(body, CompletionBody) and body.echo and body.logprobs is not None:
        raise ApiError(400, "echo with logprobs is not supported", "logprobs")


def _without_nulls(value: Any) -> Any:
    """Without fields that are null, as programs write those that they leave out."""
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _first(error: pydantic.ValidationError) -> tuple[str | None, str]:
    """The field that is wrong, if it is one, and what is wrong with it."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"])) or None
    if first["type"] == "extra_forbidden":
        return place, f"Unrecognized request argument supplied: {place}"
    if first["type"] == "missing":
        return place, f"{place} is missing"
    text = first["msg"].removeprefix("Value error, ").removeprefix("Invalid JSON: ")
    text = text.replace("Input should", "must")
    shown = repr(first["input"])
    if place is None or len(shown) > _SHOWN:
        return place, f"{place}: {text}" if place else text
    return place, f"{place}: {text}, and is {shown}"

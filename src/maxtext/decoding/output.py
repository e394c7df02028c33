"""What `maxtext.decode` prints."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from maxtext.config.errors import ConfigError, Problem
from maxtext.config.schema_serving import DecodeConfig
from maxtext.decoding.engine import Stats
from maxtext.decoding.prompts import Prompt
from maxtext.decoding.requests import Event, Request


class Engine(Protocol):
    """What is needed of `maxtext.decoding.engine.Engine`; see there."""

    stats: Stats

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of prompts that were found in the cache."""
        ...

    def add(self, request: Request) -> int:
        """Queues a request; ValueError where it cannot be done."""
        ...

    def stream(self, numbers: Iterable[int]) -> Iterator[Event]:
        """Runs requests to their ends."""
        ...


def answers(engine: Engine, prompts: Sequence[Prompt], decode: DecodeConfig) -> Iterator[str]:
    """All that is printed.

    Raises:
        ConfigError: The engine does not take a prompt; before anything is given.
    """
    if decode.prompts_file:
        return results(engine, prompts)
    return text(engine, prompts[0], echo=not decode.use_chat_template)


def text(engine: Engine, prompt: Prompt, *, echo: bool) -> Iterator[str]:
    """The prompt, where `echo` asks for it, and what follows as it comes, then a line's end.

    Raises:
        ConfigError: The engine does not take it; before anything is given.
    """
    before = prompt.text if echo else ""
    for event in engine.stream([_add(engine, prompt)]):
        yield before + event.text
        before = ""
    yield "\n"


def results(engine: Engine, prompts: Sequence[Prompt]) -> Iterator[str]:
    """A line of JSON for each prompt in order, as soon as it and all before it are done.

    Raises:
        ConfigError: The engine does not take one of them; before anything is given.
    """
    ids = [_add(engine, prompt) for prompt in prompts]
    events: dict[int, list[Event]] = {number: [] for number in ids}
    waiting = list(zip(ids, prompts, strict=True))
    for event in engine.stream(ids):
        events[event.id].append(event)
        while waiting and _done(events[waiting[0][0]]):
            number, prompt = waiting.pop(0)
            yield _line(prompt, events.pop(number))


def _add(engine: Engine, prompt: Prompt) -> int:
    try:
        return engine.add(prompt.request)
    except ValueError as error:
        raise ConfigError([Problem(prompt.place, str(error))]) from error


def _done(events: Sequence[Event]) -> bool:
    return bool(events) and events[-1].finish_reason is not None


def _line(prompt: Prompt, events: Sequence[Event]) -> str:
    tokens = [token for event in events for token in event.tokens]
    line: dict[str, Any] = {
        "prompt": prompt.text,
        "text": "".join(event.text for event in events),
        "tokens": tokens,
        "finish_reason": events[-1].finish_reason,
    }
    if prompt.request.sampling.logprobs is not None:
        found = [one for event in events for one in event.logprobs]
        line["logprobs"] = [{"chosen": one.chosen, "top": one.top} for one in found]
    return json.dumps(line, ensure_ascii=False) + "\n"


def rates(engine: Engine, *, began: float) -> str:
    """One line about the speed of all that the engine has done since `began`."""
    done = engine.stats
    first = (done.first_token_at or began) - began
    prompt, new = (max(x, 1e-9) for x in (done.prompt_seconds, done.seconds - done.prompt_seconds))
    return (
        f"prompts: {done.prompt_tokens} tokens, {done.prompt_tokens / prompt:.1f} tokens/s "
        f"({engine.num_cached_tokens} more from the cache); "
        f"new: {done.new_tokens} tokens, {done.new_tokens / new:.1f} tokens/s; "
        f"first after {first:.2f} s; steps compiled in {done.compile_seconds:.2f} s"
    )

"""vLLM's engine with the face of ours."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from maxtext.decoding.engine import Stats
from maxtext.decoding.requests import Event, FinishReason, Logprob, Request, Sampling, stream
from maxtext.decoding.text import TextStream
from maxtext.integrations.vllm.layout import COMPILED

# Why vLLM ends a request: it is told no texts that end one, only tokens.
_REASONS: Mapping[str | None, FinishReason | None] = {
    None: None,
    "stop": "eos",
    "length": "length",
}


@dataclasses.dataclass(eq=False)
class _Live:
    request: Request
    text: TextStream
    has_token: bool = False


class VllmEngine:
    """Runs requests on vLLM's engine as `maxtext.decoding.engine.Engine` does on ours.

    Tokens go in and come out, text is made of them here: so it is the same as there.
    """

    def __init__(
        self,
        engine: Any,
        *,
        decode: Callable[[Sequence[int]], str],
        vocab_size: int,
        max_length: int,
        seed: int,
    ) -> None:
        """An engine without requests.

        Args:
            engine: vLLM's `LLMEngine`, made without a tokenizer.
            decode: Tokens to text.
            vocab_size: Tokens of the tokenizer.
            max_length: Tokens of a prompt and what follows it, at most.
            seed: Of sampling, which vLLM's engine was made with.
        """
        self.engine = engine
        self.stats = Stats()
        self.num_cached_tokens = 0
        self._decode, self._vocab_size, self._max_length = decode, vocab_size, max_length
        self._seed = seed
        self._live: dict[int, _Live] = {}
        self._ids = itertools.count()
        self._cancelled: list[Event] = []
        jax.monitoring.register_event_duration_secs_listener(self._compiled)

    def add(self, request: Request) -> int:
        """Queues a request and returns its id, by which events name it.

        Raises:
            ValueError: As `Engine.add`, or it asks for what vLLM's engine on JAX does not do.
        """
        number = next(self._ids)
        self._check(request, number)
        self.engine.add_request(
            str(number), {"prompt_token_ids": list(request.tokens)}, _params(request.sampling)
        )
        text = TextStream(self._decode, request.tokens, request.sampling.stop)
        self._live[number] = _Live(request, text)
        return number

    def cancel(self, number: int) -> None:
        """Gives up a request; the next step says so. Unknown ids are done."""
        if self._live.pop(number, None) is not None:
            self.engine.abort_request([str(number)])
            self._cancelled.append(Event(number, finish_reason="cancelled"))

    def step(self) -> list[Event]:
        """One step of vLLM's engine; nothing is done where no request is left."""
        events, self._cancelled = self._cancelled, []
        if not self._live:
            return events
        stats, compiled = self.stats, self.stats.compile_seconds
        first = any(not live.has_token for live in self._live.values())
        began = time.perf_counter()
        outputs = self.engine.step()
        seconds = time.perf_counter() - began - (stats.compile_seconds - compiled)
        stats.seconds += seconds
        stats.prompt_seconds += seconds if first else 0.0
        for output in outputs:
            if int(output.request_id) in self._live:
                events.append(self._take(int(output.request_id), output))
        return events

    def stream(self, numbers: Iterable[int]) -> Iterator[Event]:
        """Runs requests, by their ids, to their ends; see `requests.stream`."""
        return stream(self, numbers)

    def load_newest_weights(self) -> None:
        """Goes on with the weights that are stored now where the old ones came from.

        Raises:
            ValueError: Requests run, of which some tokens would be the old weights'.
        """
        if self._live:
            raise ValueError(f"{len(self._live)} requests run; new weights wait for their end")
        self.engine.collective_rpc("load_newest_weights")
        self.engine.reset_prefix_cache()

    def close(self) -> None:
        """Ends vLLM's engine and the processes that it may have started."""
        jax.monitoring.unregister_event_duration_listener(self._compiled)
        self.engine.engine_core.shutdown()

    def _compiled(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == COMPILED:
            self.stats.compile_seconds += duration_secs

    def _check(self, request: Request, number: int) -> None:
        request.check(vocab_size=self._vocab_size, max_length=self._max_length)
        sampling = request.sampling
        if sampling.temperature > 0 and sampling.seed != (self._seed + number) % 2**31:
            raise ValueError(
                f"seed={sampling.seed}: vLLM's engine on JAX has one seed for all requests, "
                "decode_seed"
            )

    def _count(self, prompt: int, cached: int) -> None:
        """Takes note that a prompt has its first token."""
        self.num_cached_tokens += cached
        self.stats.prompt_tokens += prompt - cached
        self.stats.first_token_at = self.stats.first_token_at or time.perf_counter()

    def _take(self, number: int, output: Any) -> Event:
        """What a step gave one request."""
        live, made = self._live[number], output.outputs[0]
        sampling = live.request.sampling
        if not live.has_token:
            live.has_token = True
            self._count(len(live.request.tokens), output.num_cached_tokens or 0)
        reason: FinishReason | None = _REASONS[made.finish_reason]
        # The token that ended the text is no part of it.
        tokens = list(made.token_ids[:-1] if reason == "eos" else made.token_ids)
        self.stats.new_tokens += len(tokens)
        text = "".join(map(live.text.push, tokens))
        if live.text.stopped and reason is None:
            self.engine.abort_request([str(number)])
        if live.text.stopped or reason is not None:
            text += live.text.finish()
            reason = "stop" if live.text.stopped else reason
            del self._live[number]
        logprobs = ()
        if sampling.logprobs is not None:
            found = zip(tokens, made.logprobs, strict=False)
            logprobs = tuple(_logprob(one, token, sampling.logprobs) for token, one in found)
        return Event(number, tuple(tokens), text, logprobs, reason)


def _params(sampling: Sampling) -> Any:
    """The same for vLLM."""
    from vllm.sampling_params import (  # pyright: ignore[reportMissingImports]
        RequestOutputKind,
        SamplingParams,
    )

    for name, off in (("min_p", 0.0), ("repetition_penalty", 1.0)):
        if getattr(sampling, name) != off:
            raise ValueError(f"{name} is not supported by vLLM's engine on JAX")
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        max_tokens=sampling.max_new_tokens,
        # Those of our own decide, not those of a config.json.
        ignore_eos=True,
        stop_token_ids=[] if sampling.ignore_eos else list(sampling.eos_ids),
        # It leaves out those of the chosen tokens where none of the likeliest are asked for.
        logprobs=None if sampling.logprobs is None else max(1, sampling.logprobs),
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _logprob(found: Mapping[int, Any], token: int, count: int) -> Logprob:
    ranked = sorted(found.items(), key=lambda item: item[1].rank)[:count]
    return Logprob(found[token].logprob, {number: one.logprob for number, one in ranked})

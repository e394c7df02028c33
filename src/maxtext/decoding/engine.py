"""The engine: requests in, tokens out, many at once."""

import dataclasses
import itertools
import logging
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.stages import Compiled

from maxtext.decoding.batch import Plan, Shapes, numbers
from maxtext.decoding.cache import empty_cache
from maxtext.decoding.requests import Event, FinishReason, Logprob, Request, stream
from maxtext.decoding.sampling import MODES, Chosen, Mode
from maxtext.decoding.scheduler import Limits, Row, Scheduler
from maxtext.decoding.scheduler import Sequence as Running
from maxtext.decoding.step import Step, StepShape, lower_step
from maxtext.decoding.text import TextStream
from maxtext.models.decoder import Model
from maxtext.parallel.layout import Layout
from maxtext.types import DType

_logger = logging.getLogger(__name__)
# Seconds between lines that say how far compiling is.
_TELL_EVERY = 5.0


@dataclasses.dataclass(eq=False)
class _Live:
    running: Running
    text: TextStream
    seen: np.ndarray | None


@dataclasses.dataclass
class Stats:
    """What an engine has done.

    Attributes:
        prompt_tokens: Tokens of prompts that were computed.
        new_tokens: Tokens that were chosen.
        seconds: Time in steps, without compiling.
        prompt_seconds: Of it, in steps that took tokens of prompts.
        compile_seconds: Time in compiling steps.
        first_token_at: When the first token was there, by `time.perf_counter`.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    seconds: float = 0.0
    prompt_seconds: float = 0.0
    compile_seconds: float = 0.0
    first_token_at: float | None = None


class Engine:
    """Runs requests on a model; not to be used by two threads at once.

    The first step of each shape is compiled when it comes up, or by `warm_up`.

    Attributes:
        num_weight_bytes: Bytes of weights that a step reads whole: all but the embedding, where it
            is no head.
        stats: What it has done.
    """

    def __init__(
        self,
        step: Step,
        params: Model,
        layout: Layout,
        limits: Limits,
        *,
        cache_dtype: DType,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        """An engine with an empty cache.

        Args:
            step: The model's step.
            params: Weights, the layers of each group apart, placed as `layout` has it.
            layout: With the rules of serving.
            limits: What fits.
            cache_dtype: Type of cached keys and values.
            decode: Tokens to text.
        """
        self._step, self._layout, self._limits = step, layout, limits
        # Handed to each step as they lie: JAX traverses trees of other kinds in Python.
        self._weights, self._tree = jax.tree.flatten(params)
        self.num_weight_bytes = _num_weight_bytes(params)
        self._decode = decode
        self._scheduler = Scheduler(limits)
        caches = empty_cache(step.architecture, layout, limits, cache_dtype)
        self._caches, self._cache_tree = jax.tree.flatten(caches)
        self._compiled: dict[tuple[StepShape, Mode], Compiled] = {}
        self._shapes = Shapes(limits)
        self.stats = Stats()
        self._live: dict[int, _Live] = {}
        self._ids = itertools.count()
        self._cancelled: list[Event] = []

    @property
    def num_running(self) -> int:
        """Requests that hold pages."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that wait for room."""
        return self._scheduler.num_waiting

    @property
    def num_preempted(self) -> int:
        """How often a request lost its pages to an older one."""
        return self._scheduler.num_preempted

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of prompts that were found in the cache."""
        return self._scheduler.num_cached_tokens

    @property
    def num_free_pages(self) -> int:
        """Pages that no request uses."""
        return self._scheduler.num_free_pages

    @property
    def num_pages(self) -> int:
        """Pages in all."""
        return self._limits.num_pages * self._limits.num_ranks

    @property
    def max_length(self) -> int:
        """Tokens of a prompt and what follows it, at most."""
        return min(self._limits.max_length, self._limits.num_pages * self._limits.page_size)

    @property
    def programs(self) -> Mapping[tuple[StepShape, Mode], Compiled]:
        """The steps that are compiled."""
        return types.MappingProxyType(self._compiled)

    def add(self, request: Request) -> int:
        """Queues a request and returns its id, by which events name it.

        Raises:
            ValueError: The prompt is empty, has ids that are no tokens, or is too long for what
                is asked.
        """
        self._check(request)
        number = next(self._ids)
        sampling = request.sampling
        seen = None
        if sampling.repetition_penalty != 1:
            seen = np.zeros(self._step.architecture.config.vocab_size, bool)
            seen[list(request.tokens)] = True
        running = Running(number, request, list(request.tokens))
        text = TextStream(self._decode, request.tokens, sampling.stop)
        self._live[number] = _Live(running, text, seen)
        self._scheduler.add(running)
        return number

    def cancel(self, number: int) -> None:
        """Gives up a request and frees its pages; the next step says so. Unknown ids are done."""
        live = self._live.pop(number, None)
        if live is not None:
            self._scheduler.remove(live.running)
            self._cancelled.append(Event(number, finish_reason="cancelled"))

    def step(self) -> list[Event]:
        """One pass of the model over what is next; nothing is done where no request is left."""
        events, self._cancelled = self._cancelled, []
        plan = self._scheduler.plan()
        if not any(plan):
            return events
        rows = [row for of_rank in plan for row in of_rank]
        mode = Mode.of([row.sequence.request.sampling for row in rows])
        shape = self._shapes.of(plan)
        run = self._run(shape, mode)
        began = time.perf_counter()
        chosen = self._call(run, plan, shape, mode)
        self._scheduler.advance(plan)
        for rank, of_rank in enumerate(plan):
            for place, row in enumerate(of_rank):
                if row.samples:
                    events.append(self._take(row, chosen, rank * shape.sequences + place))
        self._count(rows, time.perf_counter() - began)
        return events

    def stream(self, numbers: Iterable[int]) -> Iterator[Event]:
        """Runs requests, by their ids, to their ends; see `requests.stream`."""
        return stream(self, numbers)

    def warm_up(self, announce: Callable[[str], None] = lambda _: None) -> None:
        """Compiles all that steps may need, so that none waits for it; says how far it is."""
        programs = list(itertools.product(self._shapes.all(), MODES))
        announce(f"compiling all {len(programs)} shapes of steps")
        began = told = time.monotonic()
        for done, (shape, mode) in enumerate(programs, start=1):
            self._run(shape, mode)
            now = time.monotonic()
            if now - told >= _TELL_EVERY:
                told, left = now, (now - began) / done * (len(programs) - done)
                announce(
                    f"compiled {done} of {len(programs)} in {now - began:.0f} s, {left:.0f} s left"
                )

    def _check(self, request: Request) -> None:
        request.check(vocab_size=self._step.vocab_size, max_length=self._limits.max_length)
        tokens, new = request.tokens, request.sampling.max_new_tokens
        room = self._limits.num_pages * self._limits.page_size
        if len(tokens) + new > room:
            raise ValueError(
                f"{len(tokens)} tokens of the prompt and max_new_tokens={new} exceed the {room} "
                f"that the pages of the cache hold"
            )

    def _call(self, run: Compiled, plan: Plan, shape: StepShape, mode: Mode) -> Chosen:
        """The next tokens, on the host."""
        rows: Any = numbers(plan, shape, chooses=mode.draws or mode.penalizes)
        seen = self._seen(plan, shape) if mode.penalizes else None
        if shape.ranks > 1:
            rows = jax.device_put(rows, self._layout.sharding(("pages", None), rows.shape))
        self._caches, chosen = run(self._weights, self._caches, rows, seen)
        return jax.device_get(chosen)

    def _seen(self, plan: Plan, shape: StepShape) -> np.ndarray:
        """Which tokens each sequence holds that penalizes them."""
        vocab = self._step.architecture.config.vocab_size
        seen = np.zeros((shape.ranks, shape.sequences, vocab), bool)
        for rank, of_rank in enumerate(plan):
            for place, row in enumerate(of_rank):
                own = self._live[row.sequence.id].seen
                if own is not None:
                    seen[rank, place] = own
        return seen.reshape(-1, vocab)

    def _count(self, rows: list[Row], seconds: float) -> None:
        stats = self.stats
        prompt = sum(
            max(0, min(row.end, len(row.sequence.request.tokens)) - row.start) for row in rows
        )
        stats.prompt_tokens += prompt
        stats.seconds += seconds
        stats.prompt_seconds += seconds if prompt else 0.0

    def _run(self, shape: StepShape, mode: Mode) -> Compiled:
        """The step, compiled."""
        if (shape, mode) not in self._compiled:
            began = time.perf_counter()
            params = self._tree.unflatten(self._weights)
            caches = self._cache_tree.unflatten(self._caches)
            lowered = lower_step(self._step, params, caches, self._layout, shape=shape, mode=mode)
            self._compiled[shape, mode] = lowered.compile()
            if self._layout.log is not None:
                self._layout.log.write()
            seconds = time.perf_counter() - began
            self.stats.compile_seconds += seconds
            size = f"{shape.tokens} tokens of {shape.sequences} sequences"
            _logger.info("compiled a step of %s in %.1f s", size, seconds)
        return self._compiled[shape, mode]

    def _take(self, row: Row, chosen: Chosen, place: int) -> Event:
        """Gives a sequence its new token, and ends it where that was the last."""
        sequence, sampling = row.sequence, row.sequence.request.sampling
        live = self._live[sequence.id]
        token = int(chosen.tokens[place])
        reason: FinishReason | None = None
        text, tokens = "", ()
        if token in sampling.eos_ids and not sampling.ignore_eos:
            reason = "eos"
        else:
            sequence.tokens.append(token)
            self.stats.new_tokens += 1
            self.stats.first_token_at = self.stats.first_token_at or time.perf_counter()
            tokens = (token,)
            text = live.text.push(token)
            if live.seen is not None:
                live.seen[token] = True
            if live.text.stopped:
                reason = "stop"
            elif len(sequence.tokens) == len(sequence.request.tokens) + sampling.max_new_tokens:
                reason = "length"
        if reason is not None:
            text += live.text.finish()
            reason = "stop" if live.text.stopped else reason
            self._scheduler.remove(sequence)
            del self._live[sequence.id]
        logprobs = ()
        if sampling.logprobs is not None and chosen.logprobs is not None and tokens:
            logprobs = (_logprob(chosen, place, sampling.logprobs),)
        return Event(sequence.id, tokens, text, logprobs, reason)


def _num_weight_bytes(params: Model) -> int:
    decoder = sum(leaf.nbytes for leaf in jax.tree.leaves(params.decoder))
    tied = params.decoder.logits_dense is None
    return decoder + (params.token_embedder.embedding.nbytes if tied else 0)


def _logprob(chosen: Chosen, place: int, count: int) -> Logprob:
    found = chosen.logprobs
    assert found is not None
    ids, values = found.top_tokens[place, :count].tolist(), found.top[place, :count].tolist()
    return Logprob(float(found.chosen[place]), dict(zip(ids, values, strict=True)))

"""An engine without a model: it repeats the prompt, a token a step, at once and always the same."""

import dataclasses
import itertools
import threading

from maxtext.data.tokenizer import ByteTokenizer
from maxtext.decoding.requests import Event, Logprob, Request
from maxtext.decoding.text import TextStream

PAGE = 4


@dataclasses.dataclass
class Running:
    request: Request
    text: TextStream
    tokens: list[int] = dataclasses.field(default_factory=list)

    @property
    def pages(self) -> int:
        return -(-(len(self.request.tokens) + len(self.tokens)) // PAGE)


class FakeEngine:
    """What `Worker` needs of an engine; BOS is not repeated.

    Attributes:
        gate: Steps wait until it is set.
        cancelled: Requests that were given up.
        failure: What the next step raises.
    """

    def __init__(self, *, num_pages: int = 64, max_num_seqs: int = 8, max_length: int = 64) -> None:
        self.num_pages, self.max_num_seqs, self.max_length = num_pages, max_num_seqs, max_length
        self.num_preempted = 0
        self.gate = threading.Event()
        self.gate.set()
        self.cancelled: list[int] = []
        self.failure: Exception | None = None
        self._ids = itertools.count()
        self._open: dict[int, Running] = {}

    @property
    def num_running(self) -> int:
        return min(len(self._open), self.max_num_seqs)

    @property
    def num_waiting(self) -> int:
        return len(self._open) - self.num_running

    @property
    def num_free_pages(self) -> int:
        # A copy: tests look while the engine runs.
        running = list(self._open.values())[: self.max_num_seqs]
        return self.num_pages - sum(one.pages for one in running)

    def add(self, request: Request) -> int:
        if not request.tokens:
            raise ValueError("the prompt has no tokens")
        if max(request.tokens) > 255:
            raise ValueError(f"the prompt has id {max(request.tokens)}; tokens are 0 to 255")
        number = next(self._ids)
        text = TextStream(ByteTokenizer().decode, request.tokens, request.sampling.stop)
        self._open[number] = Running(request, text)
        return number

    def cancel(self, number: int) -> None:
        if self._open.pop(number, None) is not None:
            self.cancelled.append(number)

    def step(self) -> list[Event]:
        self.gate.wait()
        if self.failure is not None:
            raise self.failure
        running = list(itertools.islice(self._open.items(), self.max_num_seqs))
        return [self._next(number, one) for number, one in running]

    def _next(self, number: int, one: Running) -> Event:
        sampling = one.request.sampling
        prompt = [token for token in one.request.tokens if token != ByteTokenizer().bos_id]
        token = prompt[len(one.tokens) % len(prompt)]
        if token in sampling.eos_ids and not sampling.ignore_eos:
            del self._open[number]
            return Event(number, text=one.text.finish(), finish_reason="eos")
        one.tokens.append(token)
        text = one.text.push(token)
        reason = "stop" if one.text.stopped else None
        if reason is None and len(one.tokens) == sampling.max_new_tokens:
            text += one.text.finish()
            reason = "stop" if one.text.stopped else "length"
        if reason is not None:
            del self._open[number]
        logprobs = ()
        if sampling.logprobs is not None:
            top = {token: -0.5, 97: -1.0, 98: float("-inf")}
            logprobs = (Logprob(-0.5, dict(list(top.items())[: sampling.logprobs])),)
        return Event(number, (token,), text, logprobs, reason)

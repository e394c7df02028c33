"""The endpoints that generate text."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from typing import override

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from maxtext.config.schema_serving import ServeConfig
from maxtext.decoding.encoding import Encoder
from maxtext.decoding.requests import Event
from maxtext.decoding.requests import Request as Wanted
from maxtext.serving.answers import Answer, Chats, Completions, Form, Piece, joined, piece
from maxtext.serving.bodies import Body, ChatBody, CompletionBody, parse
from maxtext.serving.errors import ApiError
from maxtext.serving.meters import Meters
from maxtext.serving.prompts import chat_tokens, text_tokens
from maxtext.serving.replies import Reply, read_body, while_connected
from maxtext.serving.worker import Job, Worker

_TIMED_OUT, _LEFT = 504, 499


@dataclasses.dataclass(frozen=True, eq=False)
class Service:
    """One model, and what its endpoints share.

    Attributes:
        model: Its name.
        config: Limits.
        max_length: Tokens of a prompt and its answer at most.
    """

    model: str
    config: ServeConfig
    max_length: int
    encoder: Encoder
    texts: Callable[[int], str]
    worker: Worker
    meters: Meters

    def check_model(self, name: str) -> None:
        """Raises ApiError for another model."""
        if name != self.model:
            message = f"The model `{name}` does not exist; this server has `{self.model}`"
            raise ApiError(404, message, "model", "model_not_found")

    def new_tokens(self, body: Body, prompt: int) -> int:
        """How many tokens an answer may take after a prompt of so many.

        Raises:
            ApiError: There is no room for what is asked.
        """
        room, asked = self.max_length - prompt, body.asked_tokens
        most = room if self.config.serve_max_tokens < 0 else self.config.serve_max_tokens
        if asked is not None and asked > most and asked <= room:
            raise ApiError(400, f"max_tokens is {asked}; {most} is the most here", "max_tokens")
        if room < (asked or 1):
            message = (
                f"This model's maximum context length is {self.max_length} tokens. However, you "
                f"requested {prompt + (asked or 1)} tokens ({prompt} in the prompt, {asked or 1} "
                "in the answer). Please reduce the length of either."
            )
            raise ApiError(400, message, code="context_length_exceeded")
        return min(asked or body.default_tokens or room, room, most)


class Generation[T: Body]:
    """An ASGI app that answers one kind of request."""

    path: str
    kind: type[T]

    def __init__(self, service: Service) -> None:
        self._service = service

    def tokens(self, body: T) -> list[tuple[int, ...]]:
        """The prompts."""
        raise NotImplementedError

    def form(self, body: T) -> Form:
        """How to write the answers."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        began, status = time.monotonic(), 500
        meters, seconds = self._service.meters, self._service.config.serve_timeout_seconds
        reply = Reply(scope, receive, send)
        try:
            async with asyncio.timeout(seconds):
                content = await read_body(
                    Request(scope, receive), self._service.config.serve_max_body_bytes
                )
                await while_connected(receive, self._answer(content, reply, began), reply)
            status = 200
        except ApiError as error:
            status = error.status
            await reply.fail(error)
        except TimeoutError:
            status = _TIMED_OUT
            await reply.fail(ApiError(status, f"it took longer than {seconds:g} seconds"))
        except ClientDisconnect:
            status = _LEFT
        finally:
            meters.requests.labels(self.path, status).inc()
            meters.request_seconds.labels(self.path).observe(time.monotonic() - began)

    async def _answer(self, content: bytes, reply: Reply, began: float) -> None:
        service = self._service
        service.worker.refuse(1)
        body = parse(self.kind, content)
        service.check_model(body.model)
        # A long text takes a while, in which others shall be served.
        wanted = await asyncio.to_thread(self._wanted, body)
        prompt_tokens = sum(len(one.tokens) for one in wanted[:: body.n])
        async with service.worker.job(wanted) as job:
            # Not before: what the engine refuses may have no text to echo.
            answer = Answer.new(self.form(body), service.model)
            service.meters.prompt_tokens.inc(prompt_tokens)
            run = _Run(service, job, began, probable=body.num_logprobs is not None)
            if body.stream:
                usage = body.stream_options is not None and body.stream_options.include_usage
                await _stream(run, answer, reply, usage=prompt_tokens if usage else None)
                return
            found: list[list[Piece]] = [[] for _ in wanted]
            async for one in run:
                found[one.index].append(one)
        usage = _usage(prompt_tokens, run.new_tokens)
        await reply.whole(answer.whole(map(joined, found), usage))

    def _wanted(self, body: T) -> list[Wanted]:
        """What the engine is to do: `n` requests for each prompt."""
        service, prompts = self._service, self.tokens(body)
        count, most = len(prompts) * body.n, service.worker.max_open
        if count > most:
            raise ApiError(400, f"{count} answers are asked for; {most} is the most here", "n")
        wanted: list[Wanted] = []
        for tokens in prompts:
            new = service.new_tokens(body, len(tokens))
            samplings = body.samplings(max_new_tokens=new, eos_ids=service.encoder.eos_ids)
            wanted += [Wanted(tokens, sampling) for sampling in samplings]
        return wanted


class CompletionsEndpoint(Generation[CompletionBody]):
    """`/v1/completions`."""

    path = "/v1/completions"
    kind = CompletionBody

    @override
    def tokens(self, body: CompletionBody) -> list[tuple[int, ...]]:
        return [
            text_tokens(self._service.encoder, one) if isinstance(one, str) else tuple(one)
            for one in body.prompt
        ]

    @override
    def form(self, body: CompletionBody) -> Form:
        decode = self._service.encoder.tokenizer.decode
        if not body.echo:
            return Completions([""] * (len(body.prompt) * body.n))
        texts = [one if isinstance(one, str) else decode(one) for one in body.prompt]
        return Completions([text for text in texts for _ in range(body.n)])


class ChatEndpoint(Generation[ChatBody]):
    """`/v1/chat/completions`."""

    path = "/v1/chat/completions"
    kind = ChatBody

    @override
    def tokens(self, body: ChatBody) -> list[tuple[int, ...]]:
        return [chat_tokens(self._service.encoder, body.messages)]

    @override
    def form(self, body: ChatBody) -> Form:
        return Chats(body.n)


class _Run:
    """A job as pieces of answers; counts and times them as they come."""

    def __init__(self, service: Service, job: Job, began: float, *, probable: bool) -> None:
        self.num_answers = len(job.requests)
        self.new_tokens = 0
        self._service, self._job, self._probable = service, job, probable
        self._began = began
        self._last: list[float | None] = [None] * self.num_answers

    async def __aiter__(self) -> AsyncIterator[Piece]:
        async for place, event in self._job:
            self._measure(place, event)
            yield piece(place, event, self._service.texts, probable=self._probable)

    def _measure(self, place: int, event: Event) -> None:
        if not event.tokens:
            return
        meters, now, last = self._service.meters, time.monotonic(), self._last[place]
        if last is None:
            meters.first_token.observe(now - self._began)
        else:
            meters.next_token.observe(now - last)
        self._last[place] = now
        self.new_tokens += len(event.tokens)
        meters.generated_tokens.inc(len(event.tokens))


async def _stream(run: _Run, answer: Answer, reply: Reply, *, usage: int | None) -> None:
    """Sends the chunks of all answers; `usage`: tokens of the prompts, where they are asked for."""
    beside = {} if usage is None else {"usage": None}
    await reply.begin()
    for opening in answer.form.openings():
        await reply.event(answer.chunk([opening], **beside))
    async for new in run:
        if new.text or new.probable or new.finish_reason:
            await reply.event(answer.chunk([answer.form.delta(new)], **beside))
    if usage is not None:
        await reply.event(answer.chunk([], usage=_usage(usage, run.new_tokens)))
    await reply.end()


def _usage(prompt: int, new: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}

"""How an answer goes out: whole or as a stream of events, for as long as the client is there."""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from maxtext.serving.errors import ApiError

_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class Reply:
    """The answer to one request.

    Attributes:
        started: Whether its status has been sent.
        complete: Whether all of it has been sent.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started = self.complete = False
        self._scope, self._receive, self._send = scope, receive, send

    async def whole(self, content: Mapping[str, Any]) -> None:
        """Sends all of it."""
        await JSONResponse(content)(self._scope, self._receive, self._sent)

    async def begin(self) -> None:
        """Begins a stream."""
        start = {"type": "http.response.start", "status": 200, "headers": list(_STREAM)}
        await self._sent(start)

    async def event(self, content: Mapping[str, Any]) -> None:
        """Sends a part of a stream."""
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        await self._data(text, more=True)

    async def end(self) -> None:
        """Ends a stream."""
        await self._data("[DONE]", more=False)

    async def fail(self, error: ApiError) -> None:
        """Sends an error, as the last event where a stream has begun."""
        if not self.started:
            await error.response()(self._scope, self._receive, self._sent)
        elif not self.complete:
            await self._data(json.dumps(error.body), more=False)

    async def _data(self, text: str, *, more: bool) -> None:
        body = f"data: {text}\n\n".encode()
        await self._sent({"type": "http.response.body", "body": body, "more_body": more})
        # Neither sending nor the next event need wait: others, and the news that this client left,
        # come through here.
        await asyncio.sleep(0)

    async def _sent(self, message: Message) -> None:
        await self._send(message)
        self.started = True
        body = message["type"] == "http.response.body"
        self.complete = body and not message.get("more_body", False)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body.

    Raises:
        ApiError: It is too long.
        ClientDisconnect: The client left.
    """
    too_long = ApiError(413, f"the body is longer than {max_bytes} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_long
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > max_bytes:
            raise too_long
    return bytes(content)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None], reply: Reply) -> None:
    """Does `work`, or gives it up once the client leaves.

    Args:
        receive: From which the whole body was read.
        work: Sends the reply.
        reply: Tells whether all is sent.

    Raises:
        ClientDisconnect: The client left before it had all of the reply.
    """
    tasks = working, leaving = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done() and not working.done() and not reply.complete:
            raise ClientDisconnect
        await working
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

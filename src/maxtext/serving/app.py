"""The ASGI application: routes, and errors in OpenAI's form."""

import time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from maxtext.serving.errors import ApiError
from maxtext.serving.generation import ChatEndpoint, CompletionsEndpoint, Service


def make_app(service: Service) -> Starlette:
    """The application; its engine runs while it does."""
    model = {"id": service.model, "object": "model", "created": int(time.time())}
    model |= {"owned_by": "maxtext", "max_model_len": service.max_length}

    async def models(request: Request) -> Response:
        del request
        return JSONResponse({"object": "list", "data": [model]})

    async def one_model(request: Request) -> Response:
        service.check_model(request.path_params["name"])
        return JSONResponse(model)

    async def health(request: Request) -> Response:
        del request
        worker = service.worker
        if worker.failure is not None or worker.draining:
            status = "failed" if worker.failure is not None else "draining"
            return JSONResponse({"status": status}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        del request
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return Response(service.meters.text(), headers={"content-type": content_type})

    return Starlette(
        routes=[
            *(
                Route(kind.path, kind(service), methods=["POST"])
                for kind in (CompletionsEndpoint, ChatEndpoint)
            ),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", one_model),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        exception_handlers={ApiError: _refused, HTTPException: _http_error, Exception: _failed},
        lifespan=lambda app: service.worker.running(),
    )


async def _refused(request: Request, error: Any) -> Response:
    del request
    return error.response()


async def _http_error(request: Request, error: Any) -> Response:
    message = f"{error.detail}: {request.method} {request.url.path}"
    return ApiError(error.status_code, message).response(error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """The rest; the server logs the traceback."""
    del request, error
    return ApiError(500, "the server failed on this request").response()

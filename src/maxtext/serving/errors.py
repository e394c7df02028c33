"""What clients are told that went wrong, in OpenAI's form."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

_TYPES = {404: "not_found_error", 429: "rate_limit_error", 499: "client_closed_request"}


@dataclasses.dataclass
class ApiError(Exception):
    """An answer that is an error.

    Attributes:
        status: Of HTTP.
        message: For people.
        param: The field of the request that has to change.
        code: For programs.
        retry_after: Seconds after which to try again.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's JSON."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": self.message,
            "type": _TYPES.get(self.status, kind),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def response(self, headers: Mapping[str, str] | None = None) -> JSONResponse:
        """The whole answer."""
        headers = dict(headers or {})
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        return JSONResponse(self.body, self.status, headers)

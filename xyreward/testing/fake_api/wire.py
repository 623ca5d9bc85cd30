"""Bodies of responses: JSON, and errors in the form of either API.

Not here: HTTP (`connection.py`), replies of the model (`model.py`).
"""

from __future__ import annotations

import json
from typing import Any

from xyreward.testing.fake_api.connection import Response

ERRORS: dict[int, tuple[str, str]] = {
    400: ("invalid_request_error", "messages: this request is not to the server's liking"),
    401: ("authentication_error", "invalid x-api-key"),
    403: ("permission_error", "this key may not use this resource"),
    404: ("not_found_error", "there is no such resource"),
    408: ("timeout_error", "request timed out"),
    409: ("conflict_error", "the resource is being changed by another request"),
    413: ("request_too_large", "request exceeds the maximum allowed number of bytes"),
    429: ("rate_limit_error", "this request would exceed the rate limit"),
    500: ("api_error", "internal server error"),
    529: ("overloaded_error", "overloaded"),
}
"""Status to (type, message where there is nothing more to say)."""


class RequestProblem(Exception):  # noqa: N818  # it is the answer, not a failure of this server
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        message: str | None = None,
        *,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status = status
        self.kind, default = ERRORS[status]
        self.message = default if message is None else message
        self.code = code
        """error.details.error_code."""
        self.headers = headers or {}
        super().__init__(self.message)

    def payload(self) -> dict[str, Any]:
        """As the Messages API writes it."""
        inner: dict[str, Any] = {"type": self.kind, "message": self.message}
        if self.code is not None:
            inner["details"] = {"error_code": self.code}
        return {"type": "error", "error": inner}

    def response(self, *, chat: bool) -> Response:
        """For the wire, in the form of the Messages API or of chat completions."""
        payload = self.payload()
        if chat:
            inner = {"message": self.message, "type": self.kind, "code": self.code or self.status}
            payload = {"error": inner}
        made = json_response(payload, self.status)
        made.headers.update(self.headers)
        return made


def json_response(payload: Any, status: int = 200) -> Response:
    """A response with a JSON body."""
    # Half a surrogate pair is JSON where it is escaped, and some servers send it.
    body = json.dumps(payload, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(status=status, body=body)

"""The refusal of a request, in the shape of the API's errors."""

from collections.abc import Mapping
from typing import Any


class Refusal(Exception):
    """The request is refused with this status, error type and message."""

    def __init__(self, status: int, error_type: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.type = error_type
        self.message = message
        self.headers = dict(headers or {})

    def as_json(self, request_id: str) -> dict[str, Any]:
        """Return the body of the error."""
        return {"type": "error", "error": {"type": self.type, "message": self.message}, "request_id": request_id}


def invalid(message: str) -> Refusal:
    """Return the refusal of a request that is wrong in itself."""
    return Refusal(400, "invalid_request_error", message)

"""How the emulated platform says no by HTTP."""

from __future__ import annotations

_WORDS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: HTTP status.
        message: What is wrong.
        headers: More headers.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or {}

    def document(self) -> dict[str, object]:
        """The body: errors are nested, as those of the real gateway are (third-party recordings)."""
        word = _WORDS.get(self.status, "UNKNOWN")
        return {"error": {"code": self.status, "message": self.message, "status": word}}


def denied(what: str = "kernels.get") -> ApiError:
    """The answer for what is not there, or belongs to others: it is the same for both."""
    return ApiError(403, f"Permission '{what}' was denied")

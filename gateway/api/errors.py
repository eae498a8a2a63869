"""Errors as clients of each dialect expect them: one clear line that names the field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Any, Final

from alipes.gateway.calls.events import CallFailure, FailureKind
from alipes.gateway.text.errors import TextError

OVERFLOW: Final = "context_length_exceeded"
BUSY: Final = "server_is_overloaded"
RETRY_SECONDS: Final = 1.0


class ErrorClass(StrEnum):
    """What is wrong, in terms of neither dialect."""

    INVALID = "invalid"
    AUTHENTICATION = "authentication"
    PERMISSION = "permission"
    NOT_FOUND = "not-found"
    TOO_LARGE = "too-large"
    RATE_LIMIT = "rate-limit"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


class ApiError(Exception):
    """Ends a call with ``status``. ``param`` names the culprit; ``retry_after`` is in seconds,
    0 where trying again is pointless. ``overflow``: tokens of a prompt, and how many may be."""

    def __init__(
        self,
        status: int,
        kind: ErrorClass,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: float = 0.0,
        overflow: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.overflow = overflow

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        if not self.retry_after:
            return []
        return [(b"retry-after", str(ceil(self.retry_after)).encode())]


@dataclass(frozen=True, slots=True)
class Dialect:
    """A family of clients; ``body`` renders an error and the request id as its JSON object."""

    name: str
    body: Callable[[ApiError, str], dict[str, Any]]


def invalid(param: str, message: str, code: str | None = None) -> ApiError:
    """A 400 about one field."""
    return ApiError(400, ErrorClass.INVALID, f"{param}: {message}", param or None, code)


def too_long(field: str, tokens: int, most: int) -> ApiError:
    """A prompt that the model cannot hold, in the words by which agents of each dialect know that
    they have to make it shorter."""
    message = (
        f"This model's maximum context length is {most} tokens. However, your {field} resulted in "
        f"{tokens} tokens. Please reduce the length of the {field}."
    )
    return ApiError(400, ErrorClass.INVALID, message, field, OVERFLOW, overflow=(tokens, most))


def unknown_model(name: str, known: list[str]) -> ApiError:
    shown = name if len(name) <= 200 else name[:200] + "..."
    return ApiError(
        404,
        ErrorClass.NOT_FOUND,
        f"model: {shown!r} is not served here; known models: {', '.join(known)}",
        "model",
        "model_not_found",
    )


def from_text(error: TextError) -> ApiError:
    """The HTTP side of a request that cannot become a prompt."""
    if error.overflow is not None:
        return too_long(error.field, *error.overflow)
    return invalid(error.field, error.message, error.code)


def from_failure(failure: CallFailure) -> ApiError:
    """The HTTP side of a call that failed in the fleet."""
    status, kind, code = _FAILURES[failure.kind]
    message = f"{failure.field}: {failure.reason}" if failure.field else failure.reason
    after = failure.retry_after or (RETRY_SECONDS if status == 503 else 0.0)
    return ApiError(status, kind, message, failure.field or None, code, after)


_FAILURES: Final = {
    FailureKind.INVALID: (400, ErrorClass.INVALID, None),
    FailureKind.OVERLOADED: (503, ErrorClass.OVERLOADED, BUSY),
    FailureKind.TIMEOUT: (503, ErrorClass.OVERLOADED, BUSY),
    FailureKind.UNAVAILABLE: (503, ErrorClass.UNAVAILABLE, "unavailable"),
    FailureKind.LOST: (503, ErrorClass.UNAVAILABLE, "instance_lost"),
    FailureKind.STOPPING: (503, ErrorClass.UNAVAILABLE, "shutting_down"),
    FailureKind.INTERNAL: (500, ErrorClass.INTERNAL, None),
}

_OPENAI_TYPES: Final = {
    ErrorClass.RATE_LIMIT: "rate_limit_error",
    ErrorClass.OVERLOADED: "server_error",
    ErrorClass.UNAVAILABLE: "server_error",
    ErrorClass.INTERNAL: "server_error",
}

_ANTHROPIC_TYPES: Final = {
    ErrorClass.INVALID: "invalid_request_error",
    ErrorClass.AUTHENTICATION: "authentication_error",
    ErrorClass.PERMISSION: "permission_error",
    ErrorClass.NOT_FOUND: "not_found_error",
    ErrorClass.TOO_LARGE: "request_too_large",
    ErrorClass.RATE_LIMIT: "rate_limit_error",
    ErrorClass.OVERLOADED: "overloaded_error",
    ErrorClass.UNAVAILABLE: "overloaded_error",
    ErrorClass.INTERNAL: "api_error",
}


def _openai(error: ApiError, request_id: str) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message,
            "type": _OPENAI_TYPES.get(error.kind, "invalid_request_error"),
            "param": error.param,
            "code": error.code,
        }
    }


def _anthropic(error: ApiError, request_id: str) -> dict[str, Any]:
    message = error.message
    if error.overflow is not None:
        tokens, most = error.overflow
        message = f"prompt is too long: {tokens} tokens > {min(most, tokens - 1)} maximum"
    return {
        "type": "error",
        "error": {"type": _ANTHROPIC_TYPES[error.kind], "message": message},
        "request_id": request_id,
    }


OPENAI: Final = Dialect("openai", _openai)
ANTHROPIC: Final = Dialect("anthropic", _anthropic)

"""Error bodies in SGLang's dialects, all made here. Knows errors and shapes, not routes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from radixlm.base.errors import RequestError
from radixlm.server.framing import EVENTS, LINES, NAMED_EVENTS, Framing

Dialect = Literal["native", "openai", "responses", "anthropic", "ollama"]
Body = dict[str, Any]


class MalformedError(RequestError):
    """The body is not JSON, or not sent as JSON."""


class SchemaError(RequestError):
    """The body is JSON, but a field has the wrong type."""


class ClientGoneError(Exception):
    """The client hung up; there is nobody to answer."""


def flat(message: str, kind: str, status: int, param: str | None = None, reason: str | None = None) -> Body:
    """The flat body of the OpenAI routes and of refusals by status. `reason` is our stable name of the cause."""
    body: Body = {"object": "error", "message": message, "type": kind, "param": param, "code": status}
    if reason is not None:
        body["reason"] = reason
    return body


def _openai_kind(error: RequestError) -> str:
    if isinstance(error, MalformedError | SchemaError):
        return "Bad Request"
    return {400: "BadRequestError", 500: "InternalServerError"}.get(error.status, str(error.status))


def openai_body(error: RequestError) -> Body:
    return flat(error.message, _openai_kind(error), error.status, error.field, error.code)


def native_body(error: RequestError) -> Body:
    """The body on /generate and the control routes."""
    if isinstance(error, MalformedError):
        return openai_body(error)
    if isinstance(error, SchemaError):
        return {"error": error.message}
    if error.status != 400:
        return flat(error.message, str(error.status), error.status, error.field, error.code)
    details: Body = {"message": error.message}
    if error.field is not None:
        details["param"] = error.field
    if error.code is not None:
        details["reason"] = error.code
    return {"error": details}


def native_event(error: RequestError) -> Body:
    """An error after the first byte of a native stream."""
    kind = "invalid_request_error" if error.status < 500 else "internal_server_error"
    return {"error": {"message": error.message, "type": kind, "code": error.status, "retryable": False}}


def openai_event(error: RequestError) -> Body:
    """An error after the first byte of an OpenAI stream."""
    return {"error": openai_body(error)}


def responses_body(error: RequestError) -> Body:
    """The body on /v1/responses."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": error.field, "code": error.code}}


def responses_event(error: RequestError) -> Body:
    """An error after the first byte of a Responses stream. Its place in the stream's numbering is not known here."""
    code = error.code or str(error.status)
    return {"type": "error", "code": code, "message": error.message, "param": error.field, "sequence_number": 0}


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "request_timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_body(error: RequestError) -> Body:
    """The body, and the event, on /v1/messages."""
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def plain_body(error: RequestError) -> Body:
    """The body, and the line, on /api; and what a caller without the right key sees elsewhere."""
    return {"error": error.message}


@dataclass(frozen=True)
class Style:
    """How a dialect says things: `body` of an error, `event` of one after the first byte, `framing` of its streams.

    `denial` is the body of a refusal for want of a key.
    """

    body: Callable[[RequestError], Body]
    event: Callable[[RequestError], Body]
    framing: Framing = EVENTS
    denial: Callable[[RequestError], Body] = plain_body


STYLES: dict[Dialect, Style] = {
    "native": Style(native_body, native_event),
    "openai": Style(openai_body, openai_event),
    "responses": Style(responses_body, responses_event, NAMED_EVENTS),
    "anthropic": Style(anthropic_body, anthropic_body, NAMED_EVENTS, anthropic_body),
    "ollama": Style(plain_body, plain_body, LINES),
}


def unknown_model(name: str) -> Body:
    return {
        "error": {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


def internal_error() -> RequestError:
    """What a client sees of a fault of ours; the cause is in the log."""
    return RequestError("Internal server error: the cause is in the server's log", status=500)

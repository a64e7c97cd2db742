"""Error bodies in SGLang's dialects, all made here. Knows errors and shapes, not routes."""

from collections.abc import Callable
from typing import Any, Literal

from radixlm.base.errors import RequestError

Dialect = Literal["native", "openai"]
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


BODIES: dict[Dialect, Callable[[RequestError], Body]] = {"native": native_body, "openai": openai_body}
EVENTS: dict[Dialect, Callable[[RequestError], Body]] = {"native": native_event, "openai": openai_event}


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

"""Names as a route's clients know them: of the model, and of the fields that an error blames. Knows no route."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from radixlm.base.errors import RequestError
from radixlm.server.services import Services


def served_name(services: Services, asked: str | None) -> str:
    """The model name that an answer carries: the one asked for, or the served one where none was.

    RequestError 404 for any other than the served one with --strict-model-name.
    """
    served = services.served_model_name
    if asked and asked != served and services.strict_model_name:
        message = f"The model '{asked}' does not exist; this server serves '{served}'"
        raise RequestError(message, "model", 404, "model_not_found")
    return asked or served


@contextmanager
def renamed(shown: Mapping[str, str]) -> Iterator[None]:
    """Errors raised inside name fields as `shown` says (native name to the route's own)."""
    try:
        yield
    except RequestError as error:
        native = error.field or ""
        own = shown.get(native, native)
        if own == native:
            raise
        message = error.message.replace(native, own) if "_" in native else error.message
        raise RequestError(message, own, error.status, error.code) from None

"""One HTTP request and its answer, on bare ASGI. Knows bytes, JSON and server-sent events; no route, no engine."""

import asyncio
import uuid
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive, Scope, Send

from radixlm.base.errors import RequestError
from radixlm.server.auth import header
from radixlm.server.errors import ClientGoneError, MalformedError, SchemaError
from radixlm.server.framing import EVENTS, Framing, encode_json
from radixlm.server.limits import MAX_BODY_BYTES, MAX_REQUEST_ID_CHARS
from radixlm.server.services import Services

T = TypeVar("T")

JSON = "application/json"
CONNECTION = "radixlm.connection"  # where the scope holds a Connection, if the server gives one


class Connection(Protocol):
    """The connection under an exchange, for pieces of a chunked answer that has begun."""

    def writable(self) -> bool:
        """Whether it is open and its client takes what is written."""

    def write_chunk(self, data: bytes) -> None:
        """Write one piece, not empty; never waits."""


def request_id(scope: Scope) -> str:
    """The client's x-request-id where it is short and printable, otherwise a new one."""
    given = header(scope, b"x-request-id")
    if given and len(given) <= MAX_REQUEST_ID_CHARS and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex


def _field_of(text: str) -> tuple[str, str | None]:
    """msgspec's text as (what is wrong, field path): "… - at `$.n`" becomes ("…", "n")."""
    what, _, path = text.partition(" - at `$")
    return what, path.rstrip("`").lstrip(".") or None


class Exchange:
    """What a handler works with: the request's parts, and the ways to answer it, of which it uses one, once.

    Attributes:
        status: of the answer, None until it has begun. streaming: whether it is a stream.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, services: Services, framing: Framing = EVENTS
    ) -> None:
        """`framing` is how a stream's messages look."""
        self.scope = scope
        self.services = services
        self.status: int | None = None
        self.streaming = False
        self._complete = False
        self._framing = framing
        self._receive = receive
        self._send = send
        self._connection: Connection | None = scope.get(CONNECTION)

    def query(self, name: str) -> str | None:
        values = parse_qs(self.scope["query_string"].decode("latin-1")).get(name)
        return values[-1] if values else None

    async def body(self) -> bytes:
        """The request body; RequestError 413 above MAX_BODY_BYTES."""
        length = header(self.scope, b"content-length")
        if length is not None and length.isdigit() and int(length) > MAX_BODY_BYTES:
            raise RequestError(f"The body is larger than {MAX_BODY_BYTES} bytes", status=413)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > MAX_BODY_BYTES:
                raise RequestError(f"The body is larger than {MAX_BODY_BYTES} bytes", status=413)
            if not message.get("more_body", False):
                return b"".join(parts)

    def require_json(self) -> None:
        """Refuse a body that is not declared as JSON (the OpenAI routes do, the native ones do not)."""
        content_type = (header(self.scope, b"content-type") or "").partition(";")[0].strip().lower()
        if content_type != JSON:
            raise MalformedError(f"Unsupported Media Type: send the body as {JSON}")

    async def json(self, content: Any, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        await self.answer(encode_json(content), JSON, status, headers)

    async def text(self, content: str, status: int = 200) -> None:
        await self.answer(content.encode(), "text/plain; charset=utf-8", status)

    async def answer(
        self, content: bytes, content_type: str, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        length = str(len(content)).encode()
        await self._start(status, [(b"content-type", content_type.encode()), (b"content-length", length), *headers])
        await self._finish(b"" if self.scope["method"] == "HEAD" else content)

    async def events(self, contents: Iterable[Any]) -> None:
        """Send each of `contents` as one message, all in one write; the first call sends the headers."""
        data = b"".join([self._framing.message(content) for content in contents])
        if not self.streaming:
            self.streaming = True
            headers = [(b"content-type", self._framing.content_type), (b"cache-control", b"no-cache")]
            await self._start(200, headers)
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    @property
    def flowing(self) -> bool:
        """Whether `events_now` may be used: the stream has begun, and its client keeps up."""
        return self.streaming and self._connection is not None and self._connection.writable()

    def events_now(self, contents: Iterable[Any]) -> None:
        """`events` without waiting, and past the layers in between: they change only what begins an answer."""
        data = b"".join([self._framing.message(content) for content in contents])
        if data and self._connection is not None:
            self._connection.write_chunk(data)

    async def end_events(self, contents: Iterable[Any] = ()) -> None:
        """Send the last messages and the stream's end mark, and end the answer."""
        await self.events(contents)
        await self._finish(self._framing.end)

    async def while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, cancelling it when the client hangs up (then ClientGoneError). The body has been read before."""
        task = asyncio.create_task(work)
        gone = asyncio.create_task(self._disconnected())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if self._complete:  # the server reports a disconnect after the last byte too: let `work` clean up
                await asyncio.wait({task})
        finally:
            gone.cancel()
            task.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)
        if task.cancelled():
            raise ClientGoneError
        task.result()

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _finish(self, body: bytes) -> None:
        self._complete = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """`body` as the decoder's type; MalformedError or SchemaError, which name the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        what, field = _field_of(str(error))
        raise SchemaError(f"{field}: {what}" if field else what, field) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedError(f"The body is not valid JSON: {error}") from None

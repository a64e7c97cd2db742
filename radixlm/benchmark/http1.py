"""A small HTTP/1.1 client made for many concurrent streams: bytes go from the socket straight into a receiver.

It knows requests as bytes and answers as status and body pieces; it knows nothing of SSE, JSON or benchmarks.
"""

import asyncio
import ssl
import time
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from radixlm.base.errors import ConfigError
from radixlm.config.flags import http_url


class Target(msgspec.Struct, frozen=True):
    """Where requests go: `prefix` is put before every path, `headers` are sent with every request."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""
    headers: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self._authority()}{self.prefix}"

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """A whole request, ready for the socket."""
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {self._authority()}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if body or method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def target_of(url: str, headers: dict[str, str]) -> Target:
    """The target a base URL names; ConfigError if it is not an http or https URL or a header holds a line break."""
    try:
        parts = urlsplit(http_url(url))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for name, value in headers.items():
        if any(c in name + value for c in "\r\n"):
            raise ConfigError(f"header {name!r} holds a line break")
    named = parts.hostname or ""
    host = "127.0.0.1" if named == "0.0.0.0" else named
    tls = parts.scheme == "https"
    return Target(host, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"), headers)


class HttpFailure(Exception):
    """The exchange did not come to its end: no connection, a cut one, or an answer that is not HTTP."""


class Receiver(Protocol):
    """Takes one answer as it arrives. `now` is the time the bytes were read from the socket."""

    def on_status(self, status: int) -> None: ...

    def on_body(self, data: bytes, now: float) -> None: ...


class _Connection(asyncio.Protocol):
    """One connection and the one exchange on it. Names without underscore are httptools' callbacks."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._receiver: Receiver | None = None
        self._done: asyncio.Future[None] | None = None
        self._now = 0.0
        self._sized = False  # a header says how long the body is
        self._until_close = False
        self.reusable = False
        self.answered = False

    def exchange(self, request: bytes, receiver: Receiver) -> "asyncio.Future[None]":
        """Send `request`; the future ends when the answer is complete, or fails with HttpFailure."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._receiver = receiver
        self._done = asyncio.get_running_loop().create_future()
        self.reusable = self.answered = self._sized = self._until_close = False
        self._transport.write(request)
        return self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        if self._done is None or self._done.done() or self._parser is None:
            self.close()  # bytes nobody asked for
            return
        self.answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._end(HttpFailure(f"answer not understood: {error.__context__!r}"))
        except httptools.HttpParserError as error:
            self._end(HttpFailure(f"not HTTP: {error}"))

    def on_headers_complete(self) -> None:
        assert self._parser is not None and self._receiver is not None
        self._until_close = not self._sized
        self._receiver.on_status(self._parser.get_status_code())

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._sized = True

    def on_body(self, data: bytes) -> None:
        assert self._receiver is not None
        self._receiver.on_body(data, self._now)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self.reusable = self._parser.should_keep_alive()
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._until_close and exc is None and self.answered:
            self._end(None)
        else:
            self._end(HttpFailure(f"connection closed before the answer was complete{f' ({exc})' if exc else ''}"))

    def _end(self, failure: HttpFailure | None) -> None:
        if self._done is None or self._done.done():
            return
        if failure is None:
            self._done.set_result(None)
        else:
            self.reusable = False
            self._done.set_exception(failure)


class HttpClient:
    """A pool of kept-alive connections to one target, without a limit."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._idle: list[_Connection] = []
        self._tls = ssl.create_default_context() if target.tls else None

    async def exchange(self, request: bytes, receiver: Receiver) -> None:
        """Send a request and feed its answer to `receiver`. HttpFailure if that does not come to its end.

        A kept-alive connection that the server had already closed is replaced by a fresh one, unseen by the caller.
        """
        while True:
            connection = self._take_idle()
            reused = connection is not None
            if connection is None:
                connection = await self._connect()
            try:
                await connection.exchange(request, receiver)
            except HttpFailure:
                if reused and not connection.answered:
                    continue
                raise
            finally:
                if connection.reusable and connection.is_open():
                    self._idle.append(connection)
                else:
                    connection.close()
            return

    async def fetch(self, method: str, path: str, timeout_s: float, body: bytes = b"") -> tuple[int, bytes]:
        """Status and whole body of one small request. HttpFailure also when it takes longer than `timeout_s`."""
        receiver = _Collector()
        try:
            async with asyncio.timeout(timeout_s):
                await self.exchange(self.target.request(method, path, body), receiver)
        except TimeoutError:
            raise HttpFailure(f"no answer within {timeout_s:g} s") from None
        return receiver.status, bytes(receiver.body)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open():
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(_Connection, self.target.host, self.target.port, ssl=self._tls)
        except OSError as error:
            raise HttpFailure(f"cannot connect to {self.target.url}: {error}") from None
        return connection


class _Collector:
    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()

    def on_status(self, status: int) -> None:
        self.status = status

    def on_body(self, data: bytes, now: float) -> None:
        self.body += data

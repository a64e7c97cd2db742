"""The outermost ASGI layer: a request id and one log line per request. Knows no route."""

import time
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote

from starlette.types import ASGIApp, Receive, Scope, Send

from radixlm.base.log import get
from radixlm.server.exchange import request_id

ACCESS_LOGGER = "radixlm.server.access"
log = get(ACCESS_LOGGER)


class AccessLog:
    """Answers carry x-request-id; the line has peer, request, status, seconds and that id.

    Paths that begin with one of `exclude` get no line.
    """

    def __init__(self, app: ASGIApp, exclude: tuple[str, ...] = ()) -> None:
        self._app = app
        self._exclude = exclude

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        identity = request_id(scope)
        scope["radixlm.status"] = None

        async def labelled(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                scope["radixlm.status"] = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", identity.encode())]
            await send(message)

        try:
            await self._app(scope, receive, labelled)
        finally:
            self._write(scope, identity, time.monotonic() - started)

    def _write(self, scope: Scope, identity: str, seconds: float) -> None:
        if not scope["path"].startswith(self._exclude):
            client = scope.get("client")
            peer = f"{client[0]}:{client[1]}" if client else "-"
            line = f"{scope['method']} {quote(scope['path'])} HTTP/{scope['http_version']}"
            log.info('%s - "%s" %s %.3fs id=%s', peer, line, scope["radixlm.status"] or "-", seconds, identity)

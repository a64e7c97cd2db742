"""One row per route, and the ASGI endpoint made from it: level, errors, counting. Knows no particular route."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import msgspec
from starlette.types import Receive, Scope, Send

from radixlm.base.errors import RequestError
from radixlm.base.log import get
from radixlm.frontend.task import refuse_other_task
from radixlm.protocol.control import Level
from radixlm.server.auth import Gate
from radixlm.server.errors import STYLES, ClientGoneError, Dialect, internal_error
from radixlm.server.exchange import Exchange
from radixlm.server.services import Services

log = get(__name__)

Handler = Callable[[Exchange], Awaitable[None]]
RETRY_AFTER = (b"retry-after", b"1")  # seconds, on every 503
CLIENT_GONE = 499  # the status that logs and metrics show when nobody was left to answer


@dataclass(frozen=True)
class Row:
    """One route. `level` says who may call it, `dialect` what its errors and streams look like, `body` what it reads.

    `task`: what the server's model must do, if the route is for one of the two only.
    """

    path: str
    methods: tuple[str, ...]
    handler: Handler
    level: Level
    dialect: Dialect = "native"
    body: type[msgspec.Struct] | None = None
    task: Literal["generation", "pooling"] | None = None


class Endpoint:
    """A row as an ASGI application."""

    def __init__(self, row: Row, services: Services) -> None:
        self.row = row
        self._style = STYLES[row.dialect]
        self._services = services
        self._gate = Gate(services.api_key, services.admin_api_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._services, self._style.framing)
        metrics, method = self._services.metrics, scope["method"]
        metrics.http_request(self.row.path, method)
        try:
            denial = self._gate.check(scope, self.row.level)
            if denial is not None:
                refusal = RequestError(denial.error, status=denial.status)
                await exchange.json(self._style.denial(refusal), denial.status)
            else:
                await self._run(exchange)
        except ClientGoneError:
            exchange.status = scope["radixlm.status"] = CLIENT_GONE
        finally:
            metrics.http_response(self.row.path, method, exchange.status or CLIENT_GONE)

    async def _run(self, exchange: Exchange) -> None:
        try:
            if self.row.task is not None:
                refuse_other_task(self._services.manager.card, self.row.task == "pooling")
            await self.row.handler(exchange)
        except RequestError as error:
            await self._fail(exchange, error)
        except ClientGoneError:
            raise
        except Exception:
            log.exception("%s: a request failed", self.row.path)
            await self._fail(exchange, internal_error())

    async def _fail(self, exchange: Exchange, error: RequestError) -> None:
        """Tell the client: by status while that is still possible, afterwards by an event."""
        if exchange.streaming:
            await exchange.end_events([self._style.event(error)])
        elif exchange.status is None:
            headers = [RETRY_AFTER] if error.status == 503 else []
            await exchange.json(self._style.body(error), error.status, headers)

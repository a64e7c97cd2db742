"""/configure_logging: what is logged, changed while the server runs."""

from typing import Annotated, Literal

import msgspec

from radixlm.base.log import get
from radixlm.server.exchange import Exchange, decode
from radixlm.server.refused import Refusals, Refused
from radixlm.server.route import Row

PACKAGE = "radixlm"


class LoggingBody(msgspec.Struct, kw_only=True, frozen=True):
    """What to change; null leaves a setting as it is."""

    log_requests: bool | None = None
    log_requests_level: Annotated[int, msgspec.Meta(ge=0, le=3)] | None = None
    log_requests_format: Literal["text", "json"] | None = None
    log_level: Literal["debug", "info", "warning", "error", "critical"] | None = None


REFUSED = Refusals(
    [
        *(Refused(name) for name in ("dump_requests_folder", "dump_requests_threshold", "crash_dump_folder")),
        Refused("dump_requests_exclude_meta_keys"),
    ]
)

_decoder = msgspec.json.Decoder(LoggingBody)


async def handle_configure_logging(exchange: Exchange) -> None:
    raw = await exchange.body() or b"{}"
    REFUSED.check(raw)
    body = decode(raw, _decoder)
    exchange.services.request_log.configure(
        enabled=body.log_requests, level=body.log_requests_level, format=body.log_requests_format
    )
    if body.log_level is not None:
        get(PACKAGE).setLevel(body.log_level.upper())
    await exchange.text("")


ROWS = (Row("/configure_logging", ("GET", "POST"), handle_configure_logging, "admin", body=LoggingBody),)

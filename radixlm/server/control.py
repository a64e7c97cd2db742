"""Control routes: one per verb of protocol/control.py that has a path, and /abort_request."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.protocol.control import VERBS, DoneReply, FlushCacheReply, PauseReq, Verb, WeightReply
from radixlm.server.auth import Gate
from radixlm.server.exchange import Exchange, decode
from radixlm.server.limits import MAX_FLUSH_TIMEOUT_S
from radixlm.server.route import Handler, Row

_FLUSH_RETRY_S = 0.1

Call = Callable[[Exchange, Verb, msgspec.Struct], Coroutine[Any, Any, None]]


async def _call(exchange: Exchange, verb: Verb, request: msgspec.Struct) -> None:
    """Call a verb; its reply is the body, with status 400 where it says `success: false`."""
    reply = await exchange.services.manager.control(verb.name, request)
    content = msgspec.to_builtins(reply)
    await exchange.json(content, 400 if content.get("success") is False else 200)


def _flush_timeout(exchange: Exchange) -> float:
    text = exchange.query("timeout") or "0"
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = math.nan
    if not 0 <= timeout_s <= MAX_FLUSH_TIMEOUT_S:
        raise RequestError(f"timeout must be a number of seconds from 0 to {MAX_FLUSH_TIMEOUT_S:g}", "timeout")
    return timeout_s


async def _flush_cache(exchange: Exchange, verb: Verb, request: msgspec.Struct) -> None:
    """Text answer as in SGLang; with `?timeout=` the flush waits that many seconds for the server to be idle."""
    deadline = time.monotonic() + _flush_timeout(exchange)
    while True:
        reply = await exchange.services.manager.control(verb.name, request)
        assert isinstance(reply, FlushCacheReply)
        if reply.success or time.monotonic() >= deadline:
            await exchange.text(reply.message + "\n", 200 if reply.success else 400)
            return
        await asyncio.sleep(_FLUSH_RETRY_S)


async def _pause(exchange: Exchange, verb: Verb, request: msgspec.Struct) -> None:
    """Returns once nothing is generated any more."""
    assert isinstance(request, PauseReq)
    await exchange.services.manager.pause(request.mode)
    await exchange.json(msgspec.to_builtins(DoneReply("Generation paused successfully.")))


async def _continue(exchange: Exchange, verb: Verb, request: msgspec.Struct) -> None:
    await exchange.services.manager.resume()
    await exchange.json(msgspec.to_builtins(DoneReply("Generation continued successfully.")))


async def _start_profile(exchange: Exchange, verb: Verb, request: msgspec.Struct) -> None:
    await exchange.services.manager.control(verb.name, request)
    await exchange.text("Start profiling.\n")


async def _stop_profile(exchange: Exchange, verb: Verb, request: msgspec.Struct) -> None:
    """SGLang's words; ours is written when they are sent."""
    await exchange.services.manager.control(verb.name, request)
    await exchange.text("Stop profiling. This will take some time.\n")


async def _weight(exchange: Exchange, verb: Verb, request: msgspec.Struct) -> None:
    """The values alone, without a name around them."""
    reply = await exchange.services.manager.control(verb.name, request)
    assert isinstance(reply, WeightReply)
    await exchange.json(reply.values)


_CALLS: Mapping[str, Call] = {
    "flush_cache": _flush_cache,
    "pause_generation": _pause,
    "continue_generation": _continue,
    "start_profile": _start_profile,
    "stop_profile": _stop_profile,
    "get_weights_by_name": _weight,
}


def _handler(verb: Verb) -> Handler:
    """The route's handler: the body is the verb's request (an empty one means `{}`)."""
    decoder = msgspec.json.Decoder(verb.request)
    call = _CALLS.get(verb.name, _call)

    async def handle(exchange: Exchange) -> None:
        body = await exchange.body()
        await exchange.while_connected(call(exchange, verb, decode(body or b"{}", decoder)))

    return handle


class AbortBody(msgspec.Struct, frozen=True):
    """One request id, or all requests."""

    rid: str | None = None
    abort_all: bool = False


_abort_decoder = msgspec.json.Decoder(AbortBody)


async def handle_abort(exchange: Exchange) -> None:
    """Always 200; `aborted` says how many were running or waiting. Aborting all needs the admin level."""
    services = exchange.services
    body = decode(await exchange.body(), _abort_decoder)
    if body.abort_all:
        denial = Gate(services.api_key, services.admin_api_key).check(exchange.scope, "admin")
        if denial is not None:
            await exchange.json({"error": denial.error}, denial.status)
            return
        aborted = services.manager.abort(None, abort_all=True)
    else:
        aborted = services.manager.abort(body.rid) if body.rid else 0
    await exchange.json({"aborted": aborted})


ROWS = (
    *(
        Row(verb.path, verb.methods, _handler(verb), verb.level, body=verb.request)
        for verb in VERBS
        if verb.path is not None
    ),
    Row("/abort_request", ("POST",), handle_abort, "user", body=AbortBody),
)

"""The page at /ui: its files, and the numbers that it draws. Knows no request format; chats go through the API.

The files are open to everybody and contain nothing of this server; the numbers need the key. The prefix tree shows what
others have asked, so it needs the admin level.
"""

import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.observability.journal import QUANTILES, WINDOW_S, Latency
from radixlm.observability.record import RequestRecord
from radixlm.protocol.control import TreeReply, TreeReq
from radixlm.server.exchange import Exchange
from radixlm.server.route import Row
from radixlm.server.services import Services, Tokenizer

LIVE_SHOWN = 64  # requests of each kind in one answer
ENDED_SHOWN = 64
NODES_SHOWN = 120
HEAD_TOKENS = 24
FILES: Mapping[str, str] = MappingProxyType(
    {
        "style.css": "text/css; charset=utf-8",
        "app.js": "text/javascript; charset=utf-8",
        "dom.js": "text/javascript; charset=utf-8",
        "api.js": "text/javascript; charset=utf-8",
        "dashboard.js": "text/javascript; charset=utf-8",
        "charts.js": "text/javascript; charset=utf-8",
        "tree.js": "text/javascript; charset=utf-8",
        "timeline.js": "text/javascript; charset=utf-8",
        "chat.js": "text/javascript; charset=utf-8",
        "icon.svg": "image/svg+xml",
    }
)
POLLED = ("/ui/state", "/ui/tree")  # asked for every second by every open page: not worth a line in the access log
_HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)


@cache
def _file(name: str) -> bytes:
    return resources.files("radixlm.server.ui").joinpath("static", name).read_bytes()


async def handle_page(exchange: Exchange) -> None:
    await exchange.answer(_file("index.html"), "text/html; charset=utf-8", headers=_HEADERS)


async def handle_file(exchange: Exchange) -> None:
    name = exchange.scope["path_params"]["name"]
    if name not in FILES:
        raise RequestError(f"there is no file {name!r}", status=404)
    await exchange.answer(_file(name), FILES[name], headers=_HEADERS)


async def handle_state(exchange: Exchange) -> None:
    await exchange.json(state(exchange.services))


async def handle_tree(exchange: Exchange) -> None:
    manager = exchange.services.manager
    reply = await manager.control("tree", TreeReq(NODES_SHOWN, HEAD_TOKENS))
    assert isinstance(reply, TreeReply)
    shown: dict[str, Any] = msgspec.to_builtins(reply)
    for node in shown["nodes"]:
        node["text"] = _text(manager.tokenizer, node.pop("head"))
    await exchange.json(shown)


def state(services: Services) -> dict[str, Any]:
    """What the dashboard shows, of one moment. Times of requests in seconds after their arrival."""
    manager, journal = services.manager, services.journal
    ready, stats = manager.ready, manager.stats
    live = manager.records(LIVE_SHOWN)
    ended = journal.latest(ENDED_SHOWN) if journal is not None else []
    latency = journal.latency(live) if journal is not None else {}
    return {
        "now": time.time(),
        "model": services.served_model_name,
        "version": services.version,
        "draining": manager.draining,
        "paused": manager.paused,
        "max_running_requests": None if ready is None else ready.max_running_requests,
        "capacity_tokens": None if ready is None else ready.capacity_tokens,
        "page_size": None if ready is None else ready.page_size,
        "stats": None if stats is None else msgspec.to_builtins(stats),
        "window_s": WINDOW_S,
        "latency": {name: _quantiles(found) for name, found in latency.items()},
        "requests": [_shown(record) for record in (*live, *ended)],
    }


def _quantiles(latency: Latency) -> dict[str, float]:
    named = {f"p{quantile * 100:g}": value for quantile, value in zip(QUANTILES, latency.quantiles, strict=False)}
    return {"count": latency.count, **named}


def _shown(record: RequestRecord) -> dict[str, Any]:
    return {
        "rid": record.rid,
        "created": record.created,
        "sent": record.sent_s,
        "started": record.started_s,
        "first": record.first_token_s,
        "last": record.last_token_s,
        "ended": record.ended_s,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "reason": record.reason,
        "status": record.status,
        "retractions": record.retractions,
        "stream": record.stream,
    }


def _text(tokenizer: Tokenizer | None, ids: Sequence[int]) -> str:
    """The beginning of a node; a character cut in two at its end is left out."""
    return " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids, False).rstrip("\ufffd")


ROWS = (
    Row("/ui", ("GET",), handle_page, "public"),
    Row("/ui/static/{name}", ("GET",), handle_file, "public"),
    Row("/ui/state", ("GET",), handle_state, "user"),
    Row("/ui/tree", ("GET",), handle_tree, "admin"),
)

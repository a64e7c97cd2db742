"""Liveness, readiness and the one probe that generates. Knows the tokenizer manager's state, no request format."""

import asyncio
import time
import uuid

from radixlm.frontend.choice import ChoiceRequest
from radixlm.server.exchange import Exchange
from radixlm.server.generation import error_of, refuse_unless_serving
from radixlm.server.limits import HEALTH_GENERATE_TIMEOUT_S
from radixlm.server.route import Row
from radixlm.server.services import Manager


def is_ready(manager: Manager) -> bool:
    """Whether new requests are taken, if only to wait for the end of a pause."""
    return manager.ready is not None and manager.fatal is None and not manager.draining


async def handle_health(exchange: Exchange) -> None:
    manager = exchange.services.manager
    alive = is_ready(manager) and manager.healthy(time.monotonic())
    await exchange.text("", 200 if alive else 503)


async def handle_ready(exchange: Exchange) -> None:
    manager = exchange.services.manager
    await exchange.text("", 200 if is_ready(manager) and not manager.paused else 503)


async def handle_ping(exchange: Exchange) -> None:
    await exchange.text("")


async def _answers(manager: Manager) -> bool:
    """Whether one token comes out, or the vector of one."""
    generates = manager.card.pooling is None
    probe = ChoiceRequest(
        input_ids=[0],
        sampling_params={"max_new_tokens": int(generates), "temperature": 0.0},
        pooled=not generates,
        rid=f"HEALTH_CHECK_{uuid.uuid4().hex}",
    )
    [choice] = await manager.submit_all([probe])
    try:
        async for update in choice.updates():
            if update.finished is not None:
                return error_of(update.finished.reason) is None
        return False
    finally:
        choice.abort()


async def handle_health_generate(exchange: Exchange) -> None:
    await exchange.while_connected(_probe(exchange))


async def _probe(exchange: Exchange) -> None:
    refuse_unless_serving(exchange.services)
    try:
        works = await asyncio.wait_for(_answers(exchange.services.manager), HEALTH_GENERATE_TIMEOUT_S)
    except TimeoutError:
        works = False
    await exchange.text("", 200 if works else 503)


ROWS = (
    Row("/health", ("GET",), handle_health, "public"),
    Row("/health_generate", ("GET",), handle_health_generate, "public"),
    Row("/ready", ("GET",), handle_ready, "public"),
    Row("/ping", ("GET",), handle_ping, "user"),
)

"""GET /v1/models and /v1/models/{id}: the one model served."""

import time
from typing import Any

from radixlm.server.errors import unknown_model
from radixlm.server.exchange import Exchange
from radixlm.server.route import Row
from radixlm.server.services import Services

OWNER = "radixlm"


def _card(services: Services) -> dict[str, Any]:
    ready = services.manager.ready
    facts = ready.facts if ready is not None else {}
    name = services.served_model_name
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": OWNER,
        "root": name,
        "parent": None,
        "max_model_len": facts.get("context_len", services.manager.card.context_len),
    }


async def handle_models(exchange: Exchange) -> None:
    await exchange.json({"object": "list", "data": [_card(exchange.services)]})


async def handle_model(exchange: Exchange) -> None:
    name = exchange.scope["path_params"]["model"]
    if name != exchange.services.served_model_name:
        await exchange.json(unknown_model(name), 404)
    else:
        await exchange.json(_card(exchange.services))


ROWS = (
    Row("/v1/models", ("GET",), handle_models, "user", "openai"),
    Row("/v1/models/{model:path}", ("GET",), handle_model, "user", "openai"),
)

"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API on the same pipeline as chat."""

from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.server.anthropic.body import CountBody, MessagesBody, conversation_of
from radixlm.server.anthropic.view import MessageView
from radixlm.server.dialogue import dialogue
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import generate
from radixlm.server.names import renamed, served_name
from radixlm.server.refused import Refusals, Refused
from radixlm.server.route import Row
from radixlm.server.tokens import token_ids

REFUSED = Refusals([Refused(name) for name in ("mcp_servers", "container", "bootstrap_host", "bootstrap_room")])
_NAMES = {"max_new_tokens": "max_tokens", "stop": "stop_sequences", "text": "messages"}

_messages = msgspec.json.Decoder(MessagesBody)
_count = msgspec.json.Decoder(CountBody)


def _sampling_params(body: MessagesBody) -> dict[str, Any]:
    if body.max_tokens < 1:
        raise RequestError("max_tokens must be at least 1", "max_tokens")
    given = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop_sequences or None,
    }
    return {"max_new_tokens": body.max_tokens} | {name: value for name, value in given.items() if value is not None}


async def handle_messages(exchange: Exchange) -> None:
    exchange.require_json()
    raw = await exchange.body()
    REFUSED.check(raw)
    body = decode(raw, _messages)
    services, stream = exchange.services, bool(body.stream)
    model = served_name(services, body.model)
    request, parsers = await dialogue(services, conversation_of(services, body), _sampling_params(body), stream)
    view = MessageView(services, model, parsers.begin())
    with renamed(_NAMES):
        await exchange.while_connected(generate(exchange, [request], view, stream))


async def handle_count_tokens(exchange: Exchange) -> None:
    exchange.require_json()
    body = decode(await exchange.body(), _count)
    prompt = await conversation_of(exchange.services, body).prompt(exchange.services)
    [ids] = await token_ids(exchange.services, [prompt], add_special_tokens=False)
    await exchange.json({"input_tokens": len(ids)})


ROWS = (
    Row("/v1/messages", ("POST",), handle_messages, "user", "anthropic", MessagesBody, "generation"),
    Row("/v1/messages/count_tokens", ("POST",), handle_count_tokens, "user", "anthropic", CountBody),
)

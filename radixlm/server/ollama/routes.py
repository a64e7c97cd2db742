"""Ollama's routes: /api/chat, /api/generate, /api/show, /api/tags."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from radixlm.frontend.choice import ChoiceRequest
from radixlm.parsers.pipeline import AnswerParser
from radixlm.server.dialogue import dialogue
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import generate
from radixlm.server.names import renamed, served_name
from radixlm.server.ollama.body import (
    CHAT_REFUSED,
    GENERATE_REFUSED,
    NAMES,
    ChatBody,
    GenerateBody,
    conversation_of,
    prompt_of,
    sampling_params,
)
from radixlm.server.ollama.view import LineView, said_in_chat, said_plainly
from radixlm.server.route import Row
from radixlm.server.services import Services
from radixlm.server.tokens import max_model_len


class ShowBody(msgspec.Struct, kw_only=True, frozen=True):
    """The model is named by `model`, or by `name` in older clients."""

    model: str | None = None
    name: str | None = None


_chat = msgspec.json.Decoder(ChatBody)
_generate = msgspec.json.Decoder(GenerateBody)
_show = msgspec.json.Decoder(ShowBody)


async def handle_chat(exchange: Exchange) -> None:
    raw = await exchange.body()
    CHAT_REFUSED.check(raw)
    body = decode(raw, _chat)
    services = exchange.services
    model = served_name(services, body.model)
    if not body.messages:
        await exchange.json(LineView(model, said_in_chat, AnswerParser()).nothing())
        return
    params = sampling_params(body)
    request, parsers = await dialogue(services, conversation_of(services, body), params, body.streams)
    view = LineView(model, said_in_chat, parsers.begin())
    with renamed(NAMES | {"text": "messages"}):
        await exchange.while_connected(generate(exchange, [request], view, body.streams))


async def handle_generate(exchange: Exchange) -> None:
    raw = await exchange.body()
    GENERATE_REFUSED.check(raw)
    body = decode(raw, _generate)
    view = LineView(served_name(exchange.services, body.model), said_plainly, AnswerParser())
    if not body.prompt:
        await exchange.json(view.nothing())
        return
    request = ChoiceRequest(text=prompt_of(body), sampling_params=sampling_params(body), stream=body.streams)
    with renamed(NAMES | {"text": "prompt"}):
        await exchange.while_connected(generate(exchange, [request], view, body.streams))


def _started_at(services: Services) -> str:
    return datetime.fromtimestamp(services.created, UTC).isoformat()


def _details(services: Services) -> dict[str, Any]:
    family = services.manager.card.model_type
    return {
        "parent_model": "",
        "format": services.load_format,
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": "",
    }


async def handle_tags(exchange: Exchange) -> None:
    services = exchange.services
    name = services.served_model_name
    model = {"name": name, "model": name, "modified_at": _started_at(services), "size": 0, "digest": ""}
    await exchange.json({"models": [{**model, "details": _details(services)}]})


async def handle_show(exchange: Exchange) -> None:
    services = exchange.services
    body = decode(await exchange.body(), _show)
    served_name(services, body.model or body.name)
    card = services.manager.card
    info = {
        "general.architecture": card.model_type,
        "general.basename": services.served_model_name,
        f"{card.model_type}.context_length": max_model_len(services),
        f"{card.model_type}.embedding_length": card.hidden_size,
        f"{card.model_type}.block_count": card.num_layers,
    }
    shown = {"modelfile": "", "parameters": "", "template": "", "license": ""}
    await exchange.json(
        {
            **shown,
            "modified_at": _started_at(services),
            "details": _details(services),
            "model_info": info,
            "capabilities": ["completion"],
        }
    )


ROWS = (
    Row("/api/chat", ("POST",), handle_chat, "user", "ollama", ChatBody, "generation"),
    Row("/api/generate", ("POST",), handle_generate, "user", "ollama", GenerateBody, "generation"),
    Row("/api/show", ("POST",), handle_show, "user", "ollama", ShowBody),
    Row("/api/tags", ("GET",), handle_tags, "user", "ollama"),
)

"""/parse_function_call and /separate_reasoning: the parsers on texts that were made elsewhere. Generates nothing."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from radixlm.base.errors import ConfigError, RequestError
from radixlm.base.registry import Registry
from radixlm.parsers.events import Answer, Content, Event, Reasoning, merged
from radixlm.parsers.machine import Machine
from radixlm.parsers.reasoning.base import ReasoningFormat
from radixlm.parsers.reasoning.table import REASONING
from radixlm.parsers.tools.base import ToolFormat
from radixlm.parsers.tools.table import TOOL_CALLS
from radixlm.server.exchange import Exchange, decode
from radixlm.server.route import Row
from radixlm.server.tooling import toolbox_of


class CallBody(msgspec.Struct, kw_only=True, frozen=True):
    """A text with calls in it; the server's own parser where none is named."""

    text: str
    tools: list[Any]
    tool_call_parser: str | None = None


class ReasoningBody(msgspec.Struct, kw_only=True, frozen=True):
    """A text with thinking in it; the server's own parser where none is named."""

    text: str
    reasoning_parser: str | None = None
    return_blocks: bool | None = None


MOST_CHARS = 256 * 1024  # of a text; answers of models are far shorter
_calls = msgspec.json.Decoder(CallBody)
_reasoning = msgspec.json.Decoder(ReasoningBody)


def _named(
    table: Registry[ToolFormat] | Registry[ReasoningFormat], asked: str | None, own: str | None, field: str
) -> Any:
    name = asked or own
    if name is None:
        raise RequestError(f"{field} is required: this server runs without one", field)
    try:
        return table.load(name)
    except ConfigError as error:
        raise RequestError(str(error), field) from None


async def _parsed(parser: Machine, text: str) -> Sequence[Event]:
    """What `parser` makes of the text, beside the event loop: some texts take it long."""
    if len(text) > MOST_CHARS:
        raise RequestError(f"text has {len(text)} characters, more than {MOST_CHARS}", "text")
    return await asyncio.to_thread(lambda: [*parser.feed(text), *parser.finish()])


async def handle_parse(exchange: Exchange) -> None:
    body = decode(await exchange.body(), _calls)
    own = exchange.services.tool_call_parser
    form: ToolFormat = _named(TOOL_CALLS, body.tool_call_parser, own, "tool_call_parser")
    toolbox = toolbox_of(body.tools)
    answer = Answer()
    answer.take(await _parsed(form(toolbox), body.text))
    places = {tool.name: index for index, tool in enumerate(toolbox.tools)}
    calls = [
        {"tool_index": places[call.name], "name": call.name, "parameters": call.arguments} for call in answer.calls
    ]
    await exchange.json({"normal_text": answer.content, "calls": calls})


async def handle_separate(exchange: Exchange) -> None:
    """Without a prompt the format itself says whether a text begins inside thinking."""
    body = decode(await exchange.body(), _reasoning)
    own = exchange.services.reasoning_parser
    form: ReasoningFormat = _named(REASONING, body.reasoning_parser, own, "reasoning_parser")
    events = merged(await _parsed(form.parser(form.inside_without_prompt), body.text))
    answer = Answer()
    answer.take(events)
    result: dict[str, Any] = {"reasoning_text": answer.reasoning, "text": answer.content}
    if body.return_blocks:
        result["reasoning_blocks"] = [event.text for event in events if isinstance(event, Reasoning)]
        result["text_blocks"] = [event.text for event in events if isinstance(event, Content)]
        result["blocks"] = [_block(event) for event in events if isinstance(event, Reasoning | Content)]
    await exchange.json(result)


def _block(event: Reasoning | Content) -> dict[str, str]:
    return {"type": "reasoning" if isinstance(event, Reasoning) else "text", "text": event.text}


ROWS = (
    Row("/parse_function_call", ("POST",), handle_parse, "user", body=CallBody),
    Row("/separate_reasoning", ("POST",), handle_separate, "user", body=ReasoningBody),
)

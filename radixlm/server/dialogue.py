"""From a conversation to the one request that answers it, and to what reads the answer. Knows no route's body."""

from collections.abc import Mapping
from typing import Any

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import ChoiceRequest
from radixlm.protocol.grammar import KINDS
from radixlm.protocol.messages import CacheNamespace
from radixlm.server.conversation import Conversation
from radixlm.server.formats import json_text
from radixlm.server.parsing import Parsers, Parsing, with_thinking
from radixlm.server.services import Services
from radixlm.server.tooling import ToolUse


async def dialogue(
    services: Services,
    conversation: Conversation,
    sampling_params: dict[str, Any],
    stream: bool,
    rid: str | None = None,
    namespace: CacheNamespace | None = None,
    priority: int | None = None,
    parsing: Parsing | None = None,
    input_ids: list[int] | None = None,
    processor: str | None = None,
) -> tuple[ChoiceRequest, Parsers]:
    """`sampling_params` are under their native names. RequestError when the template refuses the messages.

    `parsing` None reads answers as the server is set to; `input_ids` stand for the prompt in place of the messages.
    """
    parsing = parsing or Parsing(services, conversation.tools)
    own = {"skip_special_tokens": False} if parsing.keeps_special_tokens else {}
    demanded = _demanded(conversation.tools, sampling_params)
    request = ChoiceRequest(
        text=await conversation.prompt(services) if input_ids is None else None,
        input_ids=input_ids,
        sampling_params=sampling_params | own | demanded,
        stream=stream,
        rid=rid,
        add_special_tokens=False,
        apply_generation_defaults=services.sampling_defaults == "model",
        namespace=namespace or CacheNamespace(),
        priority=priority,
        processor=processor,
        grammar_field="tools" if demanded else None,
    )
    continued = conversation.continued if input_ids is None else ""
    return with_thinking(services, request, continued), parsing.parsers(request, continued)


def _demanded(tools: ToolUse | None, sampling_params: Mapping[str, Any]) -> dict[str, str]:
    """The grammar of calls. Where they are not forced, a format that the request itself asks for comes first."""
    if tools is None or tools.demand is None:
        return {}
    own = next((kind for kind in KINDS if sampling_params.get(kind)), None)
    if own is None:
        return {tools.demand.kind: json_text(tools.demand.value)}
    if tools.forced:
        raise RequestError(
            "tool_choice demands a call and another format is asked for: give one of them", "tool_choice"
        )
    return {}

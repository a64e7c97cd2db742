"""POST /v1/chat/completions: its body, and the requests made of it. The answer's shape is chat_view's."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import ChoiceRequest
from radixlm.protocol.extras import OUTPUTS_ONLY, LogprobOptions
from radixlm.server.conversation import Conversation, template_kwargs, thinking_kwargs
from radixlm.server.dialogue import dialogue
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import check_n, generate
from radixlm.server.limits import MAX_CHAT_TOP_LOGPROBS
from radixlm.server.openai.chat_view import ChatView
from radixlm.server.openai.common import (
    COMMON_REFUSED,
    CommonBody,
    Frame,
    expand,
    namespace_of,
    own_names,
    sampling_of,
)
from radixlm.server.openai.logprobs import ChatLogprobs
from radixlm.server.parsing import Parsing
from radixlm.server.readings import check_top
from radixlm.server.refused import Refusals, Refused
from radixlm.server.route import Row
from radixlm.server.services import Services
from radixlm.server.tooling import tool_use


class ChatBody(CommonBody, kw_only=True, frozen=True):
    """The fields of /v1/chat/completions that work."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | float | None = None
    reasoning: dict[str, Any] | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    input_ids: list[int] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    return_hidden_states: bool | Literal["last"] | None = None


REFUSED = Refusals(
    [
        *COMMON_REFUSED,
        Refused("json_schema"),
        *(Refused(name) for name in ("return_prompt_token_ids", "return_meta_info", "return_sampling_mask")),
        *(Refused(name) for name in ("return_input_ids_in_sglext", "return_output_ids_in_sglext", "task")),
        *(Refused(name) for name in ("audio", "functions", "function_call")),
        Refused("modalities", (["text"],)),
    ]
)

_decoder = msgspec.json.Decoder(ChatBody)


def _kwargs(body: ChatBody) -> dict[str, Any]:
    """The template's variables. `reasoning` says what `reasoning_effort` and the thinking switch do, in one object."""
    asked = body.reasoning or {}
    effort = body.reasoning_effort
    if effort is None:
        effort = asked.get("effort", asked.get("reasoning_effort"))
    kwargs = template_kwargs(body.chat_template_kwargs, effort)
    enabled = asked.get("enabled", asked.get("enable"))
    if not isinstance(enabled, bool | None):
        raise RequestError("reasoning.enabled must be true or false", "reasoning")
    return kwargs if enabled is None else {**thinking_kwargs(enabled), **kwargs}


def _params(body: ChatBody, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters under their native names; one of them comes among the template's variables."""
    params = sampling_of(body)
    params["max_new_tokens"] = body.max_completion_tokens or body.max_tokens or None  # 0 means unlimited, as in SGLang
    spaces = kwargs.pop("spaces_between_special_tokens", None)
    return params if spaces is None else params | {"spaces_between_special_tokens": spaces}


def _logprobs(body: ChatBody) -> LogprobOptions | None:
    """`top_logprobs` means nothing without `logprobs`, as in SGLang."""
    if not body.logprobs:
        return None
    top = body.top_logprobs or 0
    check_top(top, "top_logprobs", MAX_CHAT_TOP_LOGPROBS)
    return LogprobOptions(OUTPUTS_ONLY, top)


def _chat_logprobs(services: Services, request: ChoiceRequest) -> Callable[[], ChatLogprobs] | None:
    return None if request.logprobs is None else partial(ChatLogprobs.of, services, request)


async def handle_chat(exchange: Exchange) -> None:
    exchange.require_json()
    raw = await exchange.body()
    REFUSED.check(raw)
    body = decode(raw, _decoder)
    services, n, stream = exchange.services, check_n(body.n, 1), bool(body.stream)
    kwargs = _kwargs(body)
    params = _params(body, kwargs)
    tools = tool_use(services, body.tools, body.tool_choice, body.parallel_tool_calls)
    parsing = Parsing(
        services,
        tools,
        separate_reasoning=body.separate_reasoning is not False,
        stream_reasoning=body.stream_reasoning is not False,
        never_empty=kwargs.get("force_nonempty_content") is True,
    )
    continues = bool(body.continue_final_message)
    conversation = Conversation(messages=body.messages, kwargs=kwargs, continues=continues, tools=tools)
    request, parsers = await dialogue(
        services,
        conversation,
        params,
        stream,
        namespace=namespace_of(body),
        priority=body.priority,
        parsing=parsing,
        input_ids=body.input_ids,
        processor=body.custom_logit_processor or None,
    )
    request = replace(request, logprobs=_logprobs(body), hidden_states="last" if body.return_hidden_states else None)
    requests = expand([request], n, body.rid)
    view = ChatView(Frame(services, body, n), parsers, _chat_logprobs(services, request))
    with own_names("max_completion_tokens" if body.max_completion_tokens else "max_tokens", "messages"):
        await exchange.while_connected(generate(exchange, requests, view, stream))


ROWS = (Row("/v1/chat/completions", ("POST",), handle_chat, "user", "openai", ChatBody, "generation"),)

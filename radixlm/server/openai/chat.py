"""POST /v1/chat/completions: its body, its prompt and the shape of its answers."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import ChoiceRequest, Update
from radixlm.server.errors import openai_event
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import Transcript, check_n, error_of, generate
from radixlm.server.openai.common import (
    COMMON_REFUSED,
    CommonBody,
    Frame,
    expand,
    finish_of,
    namespace_of,
    own_names,
    sampling_of,
)
from radixlm.server.refused import Refusals, Refused
from radixlm.server.route import Row
from radixlm.server.services import Services

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_RESERVED_KWARGS = ("messages", "tools", "add_generation_prompt", "continue_final_message")
_LONG_BODY_BYTES = 64 * 1024  # longer histories are rendered off the event loop


class ChatBody(CommonBody, kw_only=True, frozen=True):
    """The fields of /v1/chat/completions that work."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | float | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    input_ids: list[int] | None = None


REFUSED = Refusals(
    [
        *COMMON_REFUSED,
        *(Refused(name) for name in ("return_prompt_token_ids", "return_meta_info", "return_sampling_mask")),
        *(Refused(name) for name in ("return_input_ids_in_sglext", "return_output_ids_in_sglext", "task")),
        *(Refused(name) for name in ("audio", "functions", "function_call", "reasoning")),
        Refused("modalities", (["text"],)),
    ]
)

_decoder = msgspec.json.Decoder(ChatBody)


def _refuse_tools(body: ChatBody) -> None:
    """Tool calls are not made yet; tools that may not be called are simply not shown to the model."""
    if body.tool_choice not in (None, "none", "auto"):
        raise RequestError("tool_choice is not supported yet", "tool_choice")
    if body.tools and body.tool_choice != "none":
        raise RequestError("tools is not supported yet", "tools")


def _template_kwargs(body: ChatBody) -> dict[str, Any]:
    kwargs = dict(body.chat_template_kwargs or {})
    if "chat_template" in kwargs:
        raise RequestError(
            "chat_template_kwargs.chat_template: requests may not bring a template", "chat_template_kwargs"
        )
    for name in _RESERVED_KWARGS:
        if name in kwargs:
            raise RequestError(f"chat_template_kwargs.{name} is set by the server", "chat_template_kwargs")
    effort = kwargs.pop("reasoning_effort", body.reasoning_effort)
    if effort is None:
        return kwargs
    number = isinstance(effort, int | float) and not isinstance(effort, bool)
    if not (0 <= effort <= 0.99 if number else effort in EFFORTS):
        allowed = f"{', '.join(EFFORTS)}, or a number from 0 to 0.99"
        raise RequestError(f"reasoning_effort must be one of {allowed}", "reasoning_effort")
    thinks = effort != "none"
    return {"thinking": thinks, "enable_thinking": thinks, **kwargs, "reasoning_effort": effort}


def _render(services: Services, body: ChatBody, kwargs: dict[str, Any]) -> str:
    """The prompt's text. RequestError when the model has no template or its template refuses the messages."""
    if services.template is None:
        raise RequestError("This model has no chat template; use /v1/completions", "messages")
    continues = bool(body.continue_final_message)
    if continues and body.messages[-1].get("role") != "assistant":
        raise RequestError("continue_final_message needs a last message of the assistant", "continue_final_message")
    try:
        return services.template.render(
            body.messages, add_generation_prompt=True, continue_final_message=continues, **kwargs
        )
    except RecursionError:
        raise RequestError("messages are nested too deeply", "messages") from None


async def _request(services: Services, body: ChatBody, size_bytes: int) -> ChoiceRequest:
    if not body.messages:
        raise RequestError("messages must not be empty", "messages")
    kwargs = _template_kwargs(body)
    spaces = kwargs.pop("spaces_between_special_tokens", None)
    params = sampling_of(body)
    params["max_new_tokens"] = body.max_completion_tokens or body.max_tokens or None  # 0 means unlimited, as in SGLang
    if spaces is not None:
        params["spaces_between_special_tokens"] = spaces
    text = None
    if body.input_ids is None:
        render = partial(_render, services, body, kwargs)
        text = await asyncio.to_thread(render) if size_bytes > _LONG_BODY_BYTES else render()
    return ChoiceRequest(
        text=text,
        input_ids=body.input_ids,
        sampling_params=params,
        stream=bool(body.stream),
        add_special_tokens=False,
        apply_generation_defaults=services.sampling_defaults == "model",
        namespace=namespace_of(body),
        priority=body.priority,
    )


class ChatView:
    """Answers of /v1/chat/completions. In a stream the finish chunks come after all choices have ended."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._begun: set[int] = set()

    def events(self, transcript: Transcript, update: Update) -> Iterable[Any]:
        error = error_of(transcript.reason)
        if error is not None:
            yield openai_event(error)
            return
        if transcript.index not in self._begun:
            self._begun.add(transcript.index)
            yield self._chunk(transcript, {"reasoning_content": None, "role": "assistant", "content": ""})
        if update.text:
            yield self._chunk(transcript, {"reasoning_content": None, "content": update.text})

    def closing(self, transcripts: Sequence[Transcript]) -> Iterable[Any]:
        for transcript in transcripts:
            if error_of(transcript.reason) is None:
                yield self._chunk(transcript, {"reasoning_content": None}, *finish_of(transcript.reason))
        if self._frame.final_usage:
            head = self._frame.head(transcripts[0], "chat.completion.chunk")
            yield {**head, "choices": [], "usage": self._frame.usage(transcripts)}

    def whole(self, transcripts: Sequence[Transcript]) -> Any:
        return {
            **self._frame.head(transcripts[0], "chat.completion"),
            "choices": [self._choice(one) for one in transcripts],
            "usage": self._frame.usage(transcripts),
            "metadata": self._frame.metadata(transcripts),
        }

    def _choice(self, transcript: Transcript) -> dict[str, Any]:
        finish_reason, matched_stop = finish_of(transcript.reason)
        return {
            "index": transcript.index,
            "message": {"role": "assistant", "content": transcript.text, "reasoning_content": None},
            "logprobs": None,
            "finish_reason": finish_reason,
            "matched_stop": matched_stop,
        }

    def _chunk(
        self,
        transcript: Transcript,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        matched_stop: int | str | None = None,
    ) -> dict[str, Any]:
        chunk = self._frame.head(transcript, "chat.completion.chunk")
        chunk["choices"] = [
            {
                "index": transcript.index,
                "delta": delta,
                "logprobs": None,
                "finish_reason": finish_reason,
                "matched_stop": matched_stop,
            }
        ]
        if self._frame.continuous_usage:
            chunk["usage"] = self._frame.usage([transcript])
        return chunk


async def handle_chat(exchange: Exchange) -> None:
    exchange.require_json()
    raw = await exchange.body()
    REFUSED.check(raw)
    body = decode(raw, _decoder)
    _refuse_tools(body)
    n = check_n(body.n, 1)
    requests = expand([await _request(exchange.services, body, len(raw))], n, body.rid)
    view = ChatView(Frame(exchange.services, body, n))
    with own_names("max_completion_tokens" if body.max_completion_tokens else "max_tokens", "messages"):
        await exchange.while_connected(generate(exchange, requests, view, bool(body.stream)))


ROWS = (Row("/v1/chat/completions", ("POST",), handle_chat, "user", "openai"),)

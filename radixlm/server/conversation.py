"""A conversation as the model's chat template takes it, and the template's variables. Knows no route's body."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from radixlm.base.errors import RequestError
from radixlm.frontend.template import RENDER_LIMIT_S, RenderTimeout, text_of
from radixlm.server.limits import MAX_MESSAGES
from radixlm.server.services import Services
from radixlm.server.tooling import ToolUse

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_RESERVED_KWARGS = ("messages", "tools", "add_generation_prompt", "continue_final_message", "limit_s", "self")
_INLINE_CHARS = 16 * 1024  # longer histories, in characters or in messages, are rendered off the event loop
_INLINE_MESSAGES = 64
_INLINE_LIMIT_S = 0.05  # everybody waits; a template that takes longer begins again on a thread


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages in OpenAI's shape. `continues`: the last one, of the assistant, is the beginning of the answer."""

    messages: list[dict[str, Any]]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    continues: bool = False
    tools: ToolUse | None = None

    @property
    def continued(self) -> str:
        """What the assistant has already said of its answer; the prompt ends with it. Ask once there is a prompt."""
        return text_of(self.messages[-1].get("content")) if self.continues else ""

    async def prompt(self, services: Services) -> str:
        """The text the model continues. RequestError when it has no template, or one that refuses the messages."""
        if services.template is None:
            raise RequestError("This model has no chat template; use /v1/completions", "messages")
        if len(self.messages) > MAX_MESSAGES:
            raise RequestError(f"messages has {len(self.messages)} items, more than {MAX_MESSAGES}", "messages")
        chars = sum(len(str(message.get("content"))) for message in self.messages if isinstance(message, dict))
        if self.tools is None and chars <= _INLINE_CHARS and len(self.messages) <= _INLINE_MESSAGES:
            with suppress(RenderTimeout):
                return self._render(services, _INLINE_LIMIT_S)
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._render, services), RENDER_LIMIT_S + 1)
        except TimeoutError:
            raise RequestError("The chat template takes too long for these messages", "messages") from None

    def _render(self, services: Services, limit_s: float | None = None) -> str:
        assert services.template is not None
        shown = self.tools.shown if self.tools is not None else None
        return services.template.render(
            self.messages,
            shown,
            add_generation_prompt=True,
            continue_final_message=self.continues,
            limit_s=limit_s,
            **self.kwargs,
        )


def template_kwargs(given: Mapping[str, Any] | None, effort: Any = None) -> dict[str, Any]:
    """The template's variables: those `given`, and the reasoning effort, which also switches thinking on or off.

    RequestError when one is the server's to set, or the effort is none that there is.
    """
    kwargs = dict(given or {})
    if "chat_template" in kwargs:
        raise RequestError(
            "chat_template_kwargs.chat_template: requests may not bring a template", "chat_template_kwargs"
        )
    for name in _RESERVED_KWARGS:
        if name in kwargs:
            raise RequestError(f"chat_template_kwargs.{name} is set by the server", "chat_template_kwargs")
    effort = kwargs.pop("reasoning_effort", effort)
    if effort is None:
        return kwargs
    number = isinstance(effort, int | float) and not isinstance(effort, bool)
    if not (0 <= effort <= 0.99 if number else effort in EFFORTS):
        allowed = f"{', '.join(EFFORTS)}, or a number from 0 to 0.99"
        raise RequestError(f"reasoning_effort must be one of {allowed}", "reasoning_effort")
    return {**thinking_kwargs(effort != "none"), **kwargs, "reasoning_effort": effort}


def thinking_kwargs(thinks: bool) -> dict[str, Any]:
    """Variables that switch a template's thinking on or off, under both names that templates know."""
    return {"thinking": thinks, "enable_thinking": thinks}

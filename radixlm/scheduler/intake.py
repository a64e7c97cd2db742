"""New requests and aborts: what a request may ask for, clamped or refused by the limits. Knows nothing of steps."""

from collections.abc import Sequence

import numpy as np

from radixlm.protocol.messages import AbortReq, FinishReason, ReleaseReq, TokenizedGenerateReqInput
from radixlm.scheduler.lifecycle import Lifecycle
from radixlm.scheduler.limits import SchedulerLimits
from radixlm.scheduler.priorities import Priorities
from radixlm.scheduler.regex import UnsupportedPattern
from radixlm.scheduler.request import Request, State
from radixlm.scheduler.stops import StopMatcher


class Intake:
    """Turns events into requests of the lifecycle, numbered in order of arrival."""

    def __init__(
        self, limits: SchedulerLimits, priorities: Priorities, token_bytes: Sequence[bytes] | None, lifecycle: Lifecycle
    ) -> None:
        self._limits = limits
        self._priorities = priorities
        self._token_bytes = token_bytes
        self._life = lifecycle
        self._arrivals = 0

    def take(self, event: TokenizedGenerateReqInput | AbortReq | ReleaseReq, now: float) -> None:
        if isinstance(event, AbortReq):
            self._abort(event)
        elif isinstance(event, ReleaseReq):
            self._release(event)
        else:
            self._arrive(event, now)

    def _arrive(self, event: TokenizedGenerateReqInput, now: float) -> None:
        matcher, problem = None, self._priorities.why_refused(event.priority) or self._too_long(event)
        if problem is None and (event.sampling.stop or event.sampling.stop_regex):
            matcher, problem = self._matcher(event)
        request = self._request(event, matcher, now)
        if problem is None:
            self._life.submit(request)
        else:
            reason = FinishReason("abort", message=problem, status_code=400, err_type="BadRequestError")
            self._life.refuse(request, reason)

    def _request(self, event: TokenizedGenerateReqInput, matcher: StopMatcher | None, now: float) -> Request:
        sampling = event.sampling
        history = np.ascontiguousarray(event.input_ids, np.int32)
        own_stop_ids = () if sampling.ignore_eos else sampling.stop_token_ids
        eos = () if sampling.ignore_eos else self._limits.eos_token_ids
        self._arrivals += 1
        return Request(
            key=event.key,
            order=self._arrivals,
            history=history,
            prompt_tokens=len(history),
            sampling=sampling,
            text=event.text,
            stream=event.stream,
            namespace=event.namespace,
            max_outputs=max(min(sampling.max_new_tokens, self._limits.longest_tokens - len(history)), 0),
            stop_ids=tuple(dict.fromkeys((*own_stop_ids, *eos))),
            own_stop_ids=bool(own_stop_ids),
            matcher=matcher,
            enqueued_at=now,
            urgency=self._priorities.urgency(event.priority),
            standing=self._priorities.standing(event.priority),
            routing_key=event.routing_key,
            logprobs=event.logprobs,
            hidden_start=event.hidden_start,
            embeds=event.embeds,
            second_at=event.second_at,
            constrained=event.grammar is not None,
            state=State.WAITING if event.grammar is None else State.HELD,
        )

    def _too_long(self, event: TokenizedGenerateReqInput) -> str | None:
        """Why the prompt and one output token cannot be held, or None when they can."""
        needed = len(event.input_ids) + min(event.sampling.max_new_tokens, 1)
        limits = self._limits
        if not len(event.input_ids):
            return "The prompt has no tokens."
        if needed <= limits.longest_tokens:
            return None
        return (
            f"Input length ({len(event.input_ids)} tokens) exceeds the maximum allowed length "
            f"({limits.longest_tokens - min(event.sampling.max_new_tokens, 1)} tokens): the context holds "
            f"{limits.context_len} tokens, the KV cache {limits.capacity_tokens}, and max_new_tokens is "
            f"{event.sampling.max_new_tokens}."
        )

    def _matcher(self, event: TokenizedGenerateReqInput) -> tuple[StopMatcher | None, str | None]:
        """(matcher, None), or (None, why there can be none)."""
        if self._token_bytes is None:
            return None, "stop and stop_regex need a tokenizer, and this server runs without one."
        try:
            return StopMatcher(event.sampling.stop, event.sampling.stop_regex, self._token_bytes), None
        except UnsupportedPattern as error:
            return None, str(error)

    def _release(self, event: ReleaseReq) -> None:
        """Let a held request run, or end it; one that was aborted meanwhile is gone."""
        request = self._life.requests.get(event.key)
        if request is None or request.state is not State.HELD:
            return
        if event.problem is None:
            self._life.release(request)
        else:
            refused = FinishReason("abort", None, None, event.problem, 400, "BadRequestError", event.field)
            self._life.finish(request, refused)

    def _abort(self, event: AbortReq) -> None:
        """End those of the named requests that still live; the others are none of our business any more."""
        for key in event.keys:
            request = self._life.requests.get(key)
            if request is None:
                continue
            queued = not request.started and event.message == "Aborted"
            message = "Abort in waiting queue" if queued else event.message
            self._life.finish(request, FinishReason("abort", message=message))

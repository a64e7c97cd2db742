"""From accepted requests to an answer: one path for every text route, streaming or not. Views give it its shape.

A view turns transcripts into a route's JSON; whatever ends early (an error, a client that hung up) ends every choice.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import Choice, ChoiceRequest, Update, Updates
from radixlm.protocol.extras import Extras
from radixlm.protocol.messages import FinishReason
from radixlm.server.answer import cached_tokens_of
from radixlm.server.auth import header
from radixlm.server.exchange import Exchange
from radixlm.server.limits import MAX_CHOICES, MAX_N
from radixlm.server.services import Services

TIMEOUT_HEADER = b"x-request-timeout"
TRACE_HEADER = b"traceparent"  # W3C Trace Context
ROUTING_KEY_HEADER = b"x-smg-routing-key"
_SPAN = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: the increment of splitmix64


@dataclass
class Transcript:
    """What one choice has said so far. `index` is its place in the expanded request."""

    index: int
    choice: Choice
    token_ids: list[int] = field(default_factory=list)
    extras: list[Extras] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)

    def take(self, update: Update) -> None:
        self._texts.append(update.text)
        self.token_ids += update.token_ids
        self.extras += update.extras

    @property
    def text(self) -> str:
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    @property
    def reason(self) -> FinishReason | None:
        return self.choice.finished.reason if self.choice.finished is not None else None

    @property
    def prompt_tokens(self) -> int:
        return self.choice.finished.prompt_tokens if self.choice.finished else self.choice.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        return self.choice.finished.completion_tokens if self.choice.finished else len(self.token_ids)

    @property
    def cached_tokens(self) -> int:
        return cached_tokens_of(self.choice)


class View(Protocol):
    """A route's shape of an answer."""

    def events(self, transcript: Transcript, update: Update) -> Iterable[Any]:
        """What a stream says of one update (already in the transcript)."""

    def closing(self, transcripts: Sequence[Transcript]) -> Iterable[Any]:
        """What a stream says after all choices have ended, before [DONE]."""

    def whole(self, transcripts: Sequence[Transcript]) -> Any:
        """The answer without streaming."""


def refuse_unless_serving(services: Services) -> None:
    """RequestError 503 before the scheduler is ready, while draining and after a fatal error."""
    manager = services.manager
    if manager.fatal is not None:
        raise RequestError(f"The server has failed: {manager.fatal}", status=503)
    if manager.draining:
        raise RequestError("The server is shutting down", status=503)
    if manager.ready is None:
        raise RequestError("The server is still starting", status=503)


def check_n(n: Any, prompts: int, field: str = "n") -> int:
    """`n`, or 1 for None; RequestError names the field and the limit."""
    if n is None:
        return 1
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_N:
        raise RequestError(f"{field} must be an integer from 1 to {MAX_N}", field)
    if n * prompts > MAX_CHOICES:
        raise RequestError(f"{prompts} prompts times {field} = {n} are more than {MAX_CHOICES} choices", field)
    return n


def choice_seed(seed: Any, index: int) -> Any:
    """The seed of the index-th continuation of one prompt: the given one for the first, others derived from it.

    What is not an integer is left as it is, for validation to refuse.
    """
    if index == 0 or not isinstance(seed, int):
        return seed
    mixed = (seed + index * _GOLDEN) % _SPAN
    return mixed - _SPAN if mixed >= _SPAN // 2 else mixed


def error_of(reason: FinishReason | None) -> RequestError | None:
    """The error behind an abort that has a status; an abort by the user has none."""
    if reason is None or reason.type != "abort" or reason.status_code is None:
        return None
    return RequestError(reason.message or "The request was aborted", reason.field, reason.status_code)


def time_limit_s(exchange: Exchange) -> float | None:
    """How long the request may take: the smaller of its x-request-timeout header and --request-timeout, in seconds."""
    given, limit_s = header(exchange.scope, TIMEOUT_HEADER), exchange.services.request_timeout_s
    if given is None:
        return limit_s
    try:
        asked_s = float(given)
    except ValueError:
        asked_s = math.nan
    if not 0 < asked_s < math.inf:
        raise RequestError("x-request-timeout must be a number of seconds above 0", "x-request-timeout")
    return asked_s if limit_s is None else min(asked_s, limit_s)


async def generate(exchange: Exchange, requests: list[ChoiceRequest], view: View, stream: bool) -> None:
    """Answer `exchange` with the continuations of `requests`. RequestError when refused before the first byte."""
    services, limit_s = exchange.services, time_limit_s(exchange)
    refuse_unless_serving(services)
    routing_key = header(exchange.scope, ROUTING_KEY_HEADER)
    if routing_key:
        requests = [replace(request, routing_key=request.routing_key or routing_key) for request in requests]
    if services.enable_trace:
        parent = header(exchange.scope, TRACE_HEADER)
        requests = [replace(request, trace_parent=parent) for request in requests]
    try:
        async with asyncio.timeout(limit_s) as timer:
            choices = await services.manager.submit_all(requests)
            try:
                await _answer(exchange, requests, choices, view, stream)
            finally:
                for choice in choices:
                    choice.abort()
    except TimeoutError:
        if not timer.expired():
            raise
        limit = f"the {limit_s:g} s that x-request-timeout or --request-timeout allow"
        raise RequestError(f"Request timeout reached: it has not ended within {limit}.", status=503) from None


async def _answer(
    exchange: Exchange, requests: Sequence[ChoiceRequest], choices: Sequence[Choice], view: View, stream: bool
) -> None:
    transcripts = [Transcript(index, choice) for index, choice in enumerate(choices)]
    at_once = partial(_write_now, exchange, view) if stream else None
    following = Following(exchange.services, requests, transcripts, at_once)
    while batch := await following.next():
        if not exchange.streaming:
            _raise_refusals(transcript for transcript, _ in batch)
        if stream:
            await exchange.events([event for transcript, update in batch for event in view.events(transcript, update)])
    if stream:
        await exchange.end_events(view.closing(transcripts))
    else:
        await exchange.json(view.whole(transcripts))


def _write_now(exchange: Exchange, view: View, transcript: Transcript) -> bool:
    """Send what is new in one choice, if that needs no waiting."""
    if not exchange.flowing:
        return False
    update = transcript.choice.take()
    transcript.take(update)
    exchange.events_now(view.events(transcript, update))
    return True


class Following:
    """Follows choices to their ends, writing down and logging what they say."""

    def __init__(
        self,
        services: Services,
        requests: Sequence[ChoiceRequest],
        transcripts: Sequence[Transcript],
        at_once: Callable[[Transcript], bool] | None = None,
    ) -> None:
        """`at_once` may take what is new in the middle of a choice's life, as in Updates; what it takes `next` does not
        see."""
        self._at_once = at_once
        self._failure: Exception | None = None
        self._log = services.request_log
        self._requests = requests
        self._transcripts = transcripts
        direct = None if at_once is None else self._take_at_once
        self._updates = Updates([transcript.choice for transcript in transcripts], direct)
        for request, transcript in zip(requests, transcripts, strict=True):
            self._log.received(request, transcript.choice)

    async def next(self) -> list[tuple[Transcript, Update]]:
        """Wait for something new, already written down; empty once every choice has ended."""
        batch = [(self._transcripts[index], update) for index, update in await self._updates.next()]
        if self._failure is not None:
            raise self._failure
        for transcript, update in batch:
            transcript.take(update)
            if update.finished is not None:
                self._log.finished(self._requests[transcript.index], transcript.choice, transcript.text)
        return batch

    def _take_at_once(self, index: int) -> bool:
        """Ends are left to `next`; so is a failure, which must not reach whoever feeds the choice."""
        transcript = self._transcripts[index]
        if transcript.choice.finished is not None or self._at_once is None:
            return False
        try:
            return self._at_once(transcript)
        except Exception as error:
            self._failure = error
            return False


def _raise_refusals(transcripts: Iterable[Transcript]) -> None:
    for transcript in transcripts:
        error = error_of(transcript.reason)
        if error is not None:
            raise error

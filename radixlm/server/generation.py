"""From accepted requests to an answer: one path for every text route, streaming or not. Views give it its shape.

A view turns transcripts into a route's JSON; whatever ends early (an error, a client that hung up) ends every choice.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import Choice, ChoiceRequest, Update
from radixlm.protocol.messages import FinishReason
from radixlm.server.answer import cached_tokens_of
from radixlm.server.auth import header
from radixlm.server.exchange import Exchange
from radixlm.server.limits import MAX_CHOICES, MAX_N
from radixlm.server.services import Services

TIMEOUT_HEADER = b"x-request-timeout"
_SPAN = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: the increment of splitmix64


@dataclass
class Transcript:
    """What one choice has said so far. `index` is its place in the expanded request."""

    index: int
    choice: Choice
    text: str = ""
    token_ids: list[int] = field(default_factory=list)

    def take(self, update: Update) -> None:
        self.text += update.text
        self.token_ids += update.token_ids

    @property
    def reason(self) -> FinishReason | None:
        return self.choice.finished.reason if self.choice.finished is not None else None

    @property
    def prompt_tokens(self) -> int:
        return self.choice.finished.prompt_tokens if self.choice.finished else len(self.choice.prompt_ids)

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


def check_n(n: Any, prompts: int) -> int:
    """`n`, or 1 for None; RequestError names the limit."""
    if n is None:
        return 1
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_N:
        raise RequestError(f"n must be an integer from 1 to {MAX_N}", "n")
    if n * prompts > MAX_CHOICES:
        raise RequestError(f"{prompts} prompts times n = {n} are more than {MAX_CHOICES} choices", "n")
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
    return RequestError(reason.message or "The request was aborted", status=reason.status_code)


async def merged_updates(choices: Sequence[Choice]) -> AsyncGenerator[list[tuple[int, Update]], None]:
    """What is new, as (index, update) lists; updates that come while the consumer is busy are merged."""
    if len(choices) == 1:
        async for update in choices[0].updates():
            yield [(0, update)]
        return
    pending: dict[int, Update] = {}
    failures: list[Exception] = []
    wake = asyncio.Event()

    async def pump(index: int, choice: Choice) -> None:
        try:
            async for update in choice.updates():
                merged = pending.setdefault(index, Update())
                merged.text += update.text
                merged.token_ids += update.token_ids
                merged.finished = update.finished
                wake.set()
        except Exception as error:
            failures.append(error)
            wake.set()

    pumps = [asyncio.create_task(pump(index, choice)) for index, choice in enumerate(choices)]
    try:
        running = len(pumps)
        while running:
            await wake.wait()
            wake.clear()
            batch = sorted(pending.items())
            pending.clear()
            if batch:
                yield batch
            running -= sum(update.finished is not None for _, update in batch)
            if failures:
                raise failures[0]
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


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
    async with aclosing(written(exchange.services, requests, transcripts)) as batches:
        async for batch in batches:
            if not exchange.streaming:
                _raise_refusals(transcript for transcript, _ in batch)
            if stream:
                await exchange.events(
                    [event for transcript, update in batch for event in view.events(transcript, update)]
                )
    if stream:
        await exchange.end_events(view.closing(transcripts))
    else:
        await exchange.json(view.whole(transcripts))


async def written(
    services: Services, requests: Sequence[ChoiceRequest], transcripts: Sequence[Transcript]
) -> AsyncGenerator[list[tuple[Transcript, Update]], None]:
    """Follow the choices of `transcripts` to their ends, writing down and logging; yields what is new each time."""
    log = services.request_log
    for request, transcript in zip(requests, transcripts, strict=True):
        log.received(request, transcript.choice)
    async with aclosing(merged_updates([transcript.choice for transcript in transcripts])) as updates:
        async for batch in updates:
            for index, update in batch:
                transcripts[index].take(update)
                if update.finished is not None:
                    log.finished(requests[index], transcripts[index].choice, transcripts[index].text)
            yield [(transcripts[index], update) for index, update in batch]


def _raise_refusals(transcripts: Iterable[Transcript]) -> None:
    for transcript in transcripts:
        error = error_of(transcript.reason)
        if error is not None:
            raise error

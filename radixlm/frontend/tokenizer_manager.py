"""The tokenizer manager: every live request's state on the front side, and the messages to and from the scheduler.

Knows neither HTTP nor how a prompt is checked (frontend/intake.py). It lives on one event loop; its state changes only
between awaits.
"""

import asyncio
import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from radixlm.base import log
from radixlm.base.errors import RadixError, RequestError
from radixlm.config.card import ModelCard
from radixlm.frontend.choice import Choice, ChoiceRequest
from radixlm.frontend.detokenizer import Detokenizer
from radixlm.frontend.intake import Intake, Prepared
from radixlm.frontend.lengths import Limits
from radixlm.frontend.metrics_hooks import MetricsHooks
from radixlm.frontend.prompts import LocalPrompts, Prompts
from radixlm.frontend.records import record_of
from radixlm.loader.tokenizer import Tokenizer
from radixlm.observability.record import RecordSink, RequestRecord
from radixlm.protocol import control
from radixlm.protocol.messages import (
    AbortReq,
    BatchStrOutput,
    BatchTokenIDOutput,
    ControlReply,
    ControlReq,
    FatalError,
    Finished,
    FinishReason,
    FromScheduler,
    SchedulerReady,
    SchedulerStats,
    TokenizedGenerateReqInput,
)
from radixlm.protocol.wire import Link

_log = log.get(__name__)
Output = BatchTokenIDOutput | BatchStrOutput
_ABORT_AGAIN_S = 1.0
_ABORTED = FinishReason("abort", message="Aborted")


@dataclass(frozen=True)
class TokenizerManagerConfig:
    """What the tokenizer manager is told of the server's settings. `context_len` in tokens.

    `max_queued_requests` None means no limit; `stream_interval` is for requests that do not bring their own.
    """

    context_len: int
    allow_auto_truncate: bool = False
    max_queued_requests: int | None = None
    stream_interval: int = 1
    random_seed: int | None = None
    enable_return_hidden_states: bool = False
    control_timeout_s: float = 120.0
    heartbeat_timeout_s: float = 20.0


@dataclass
class _Live:
    """A request the scheduler has. `sent_at` and `last_at` (when tokens last came) in Unix seconds."""

    choice: Choice
    sent_at: float
    tokens: int = 0
    first_s: float | None = None
    last_at: float = 0.0


@dataclass
class _Requests:
    """Every request that has not ended: those still being prepared are in `rids` but not in `live`."""

    rids: dict[str, int] = field(default_factory=dict)
    live: dict[int, _Live] = field(default_factory=dict)
    stopping: set[int] = field(default_factory=set)
    none_left: asyncio.Event = field(default_factory=asyncio.Event)

    def reserve(self, rid: str, key: int) -> None:
        if rid in self.rids:
            raise RequestError(f"rid {rid!r} belongs to a request that is still running", "rid")
        self.rids[rid] = key
        self.none_left.clear()

    def release(self, rid: str, key: int) -> None:
        """The request has ended."""
        del self.rids[rid]
        self.live.pop(key, None)
        self.stopping.discard(key)
        if not self.rids:
            self.none_left.set()


class TokenizerManager:
    """Takes requests in, sends them to the scheduler, and feeds what comes back to their choices.

    Attributes:
        ready: the scheduler's start-up facts, None before. stats: its last pulse.
        last_heartbeat: when the scheduler last said anything, monotonic seconds.
        fatal: why nothing can be served any more, or None. draining: no new requests are taken.
        paused: new requests wait until `resume`.
    """

    def __init__(
        self,
        config: TokenizerManagerConfig,
        card: ModelCard,
        tokenizer: Tokenizer | None,
        link: Link,
        detokenizer: Detokenizer | None,
        metrics: MetricsHooks,
        now: Callable[[], float] = time.time,
        on_ended: RecordSink | None = None,
        prompts: Prompts | None = None,
    ) -> None:
        """`detokenizer` works in this process; None when it is one of its own, or when only ids are served. `prompts`
        tokenizes; None: the tokenizer does, in this process. `on_ended` is given the record of every request that ends.
        """
        self.card = card
        self.tokenizer = tokenizer
        self.ready: SchedulerReady | None = None
        self.stats: SchedulerStats | None = None
        self.last_heartbeat: float | None = None
        self.fatal: str | None = None
        self.draining = False
        self.paused = False
        self._config = config
        self._link = link
        self._detokenizer = detokenizer
        self._metrics = metrics
        self._now = now
        self._on_ended = on_ended
        encoding = LocalPrompts(tokenizer) if prompts is None and tokenizer is not None else prompts
        longest = max(map(len, tokenizer.token_bytes()), default=0) if tokenizer is not None else 0
        self._intake = Intake(card, encoding, config.random_seed, config.enable_return_hidden_states, longest)
        self._keys = itertools.count(1)
        self._requests = _Requests()
        self._calls = itertools.count(1)
        self._open = asyncio.Event()
        self._open.set()
        self._replies: dict[int, asyncio.Future[ControlReply]] = {}

    # ---- requests in

    async def submit(self, request: ChoiceRequest) -> Choice:
        """Check, tokenize and send one request. RequestError when it is refused."""
        return (await self.submit_all([request]))[0]

    async def submit_all(self, requests: list[ChoiceRequest]) -> list[Choice]:
        """Check and send all of `requests`, or none; during a pause this waits for its end. RequestError for the first
        that is refused."""
        self._refuse_if_closed()
        await self._open.wait()
        self._refuse_if_closed()
        self._refuse_if_full(len(requests))
        created = self._now()
        reserved: list[tuple[str, int]] = []
        choices: list[Choice] = []
        try:
            for request in requests:
                rid, key = request.rid or uuid.uuid4().hex, next(self._keys)
                self._requests.reserve(rid, key)
                reserved.append((rid, key))
            prepared = await self._intake.prepare(requests, self._limits())
            if self.fatal is not None:
                raise RequestError(self.fatal, status=503)
            for (rid, key), request, ready in zip(reserved, requests, prepared, strict=True):
                choices.append(self._start(rid, key, request, ready, created))
        except BaseException:
            for choice in choices:
                choice.abort()
            for rid, key in reserved[len(choices) :]:
                self._requests.release(rid, key)
            raise
        return choices

    def _refuse_if_closed(self) -> None:
        if self.fatal is not None:
            raise RequestError(self.fatal, status=503)
        if self.draining:
            raise RequestError("The server is shutting down and takes no new requests.", status=503)

    def _refuse_if_full(self, new: int) -> None:
        limit = self._config.max_queued_requests
        if limit is not None and self._waiting(new) > limit:
            raise RequestError("The request queue is full.", status=503, code="queue_full")

    def _waiting(self, new: int) -> int:
        """How many requests would wait with `new` more, at least.

        While the last pulse shows a queue, what it shows running is what the server can run; otherwise up to
        max_running_requests could run. So a burst is counted short until the next pulse, but none is refused that
        could have run at once.
        """
        if self.ready is None:
            return self.live + new
        room, stats = self.ready.max_running_requests, self.stats
        if stats is not None and stats.num_queue_reqs and stats.num_running_reqs:
            started = sum(live.choice.started is not None for live in self._requests.live.values())
            room = max(stats.num_running_reqs, started)
        return self.live + new - room

    def _limits(self) -> Limits:
        capacity = None if self.ready is None else self.ready.capacity_tokens
        return Limits(self._config.context_len, capacity, self._config.allow_auto_truncate)

    def _start(self, rid: str, key: int, request: ChoiceRequest, prepared: Prepared, created: float) -> Choice:
        choice = Choice(rid, key, prepared.prompt_ids, request.stream, created, self.abort_key)
        choice.truncated_tokens = prepared.truncated_tokens
        choice.logprobs = prepared.logprobs
        choice.trace_parent = request.trace_parent
        choice.interval = prepared.stream_interval or self._config.stream_interval
        if prepared.truncated_tokens:
            _log.warning("request %s: %d tokens were cut off its prompt", rid, prepared.truncated_tokens)
        self._metrics.received(request.stream)
        if key in self._requests.stopping:  # aborted while it was being prepared
            self._end_here(_Live(choice, self._now()), _ABORTED)
            return choice
        self._requests.live[key] = _Live(choice, self._now())
        self._link.send(
            TokenizedGenerateReqInput(
                key=key,
                input_ids=prepared.prompt_ids,
                sampling=prepared.sampling,
                text=prepared.text,
                stream=request.stream,
                arrival_time=created,
                namespace=request.namespace,
                priority=request.priority,
                routing_key=request.routing_key,
                logprobs=prepared.logprobs,
                hidden_start=prepared.hidden_start,
                second_at=request.second_at,
                grammar=prepared.grammar,
                embeds=None if request.input_embeds is None else request.input_embeds[: len(prepared.prompt_ids)],
            )
        )
        return choice

    # ---- aborts

    def abort(self, rid: str | None, abort_all: bool = False) -> int:
        """Stop the request called `rid`, or all of them; how many were told to stop by this call.

        `rid` may also be the one id that a batch was given: its requests are called `rid`_0, `rid`_1 and so on.
        """
        if abort_all:
            return self._abort(list(self._requests.rids.values()))
        rids = self._requests.rids
        if rid in rids:
            return self._abort([rids[rid]])
        parts = ((name.rpartition("_"), key) for name, key in rids.items())
        return self._abort([key for (batch, _, index), key in parts if batch == rid and index.isdigit()])

    def abort_key(self, key: int) -> None:
        """Stop one request by its internal key. Harmless when it has ended or has been told before."""
        if key in self._requests.live:
            self._abort([key])

    def _abort(self, keys: Iterable[int]) -> int:
        """State is kept until the scheduler confirms, so an aborted request still ends with its Finished."""
        new = [key for key in keys if key not in self._requests.stopping]
        self._requests.stopping.update(new)
        sent = [key for key in new if key in self._requests.live]
        if sent:
            self._link.send(AbortReq(sent))
        return len(new)

    # ---- control, life and death

    async def control(self, verb: str, request: msgspec.Struct) -> msgspec.Struct:
        """Call a verb of protocol/control.py and wait for its effect. RequestError carries the scheduler's refusal."""
        if self.fatal is not None:
            raise RequestError(self.fatal, status=503)
        row = control.BY_NAME[verb]
        call = next(self._calls)
        future: asyncio.Future[ControlReply] = asyncio.get_running_loop().create_future()
        self._replies[call] = future
        try:
            self._link.send(ControlReq(call, verb, msgspec.msgpack.encode(request)))
            reply = await asyncio.wait_for(future, self._config.control_timeout_s)
        except TimeoutError:
            raise RequestError(
                f"{verb}: the scheduler has not answered within {self._config.control_timeout_s:g} s", status=503
            ) from None
        finally:
            del self._replies[call]
        if reply.error is not None:
            raise RequestError(reply.error, status=reply.status)
        return msgspec.msgpack.decode(reply.body, type=row.reply)

    async def pause(self, mode: Literal["abort", "retract", "in_place"]) -> None:
        """Stop generating; returns once that is true. `abort` ends what runs and waits, the others keep it for
        `resume`. RequestError when the scheduler refuses."""
        self.paused = True
        self._open.clear()
        try:
            if mode == "abort":
                await self._abort_until_none_is_left()
            else:
                await self.control("pause_generation", control.PauseReq(mode))
        except BaseException:
            self._unpause()
            raise

    async def resume(self) -> None:
        """End a pause; harmless without one."""
        await self.control("continue_generation", control.ContinueReq())
        self._unpause()

    def _unpause(self) -> None:
        self.paused = False
        self._open.set()

    async def _abort_until_none_is_left(self) -> None:
        while self.live and self.paused:
            self.abort(None, abort_all=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._requests.none_left.wait(), _ABORT_AGAIN_S)

    def records(self, most: int) -> list[RequestRecord]:
        """What is known of the running and waiting requests that came last, at most `most` of them, newest first."""
        return [_record(live) for live in itertools.islice(reversed(self._requests.live.values()), most)]

    @property
    def live(self) -> int:
        """How many requests have not ended."""
        return len(self._requests.rids)

    def healthy(self, now_monotonic: float) -> bool:
        """Whether the scheduler has given a sign of life lately."""
        heard = self.last_heartbeat
        return self.fatal is None and heard is not None and now_monotonic - heard < self._config.heartbeat_timeout_s

    async def drain(self, timeout_s: float) -> int:
        """Take no new requests and wait until those there are have ended; how many have not in time. Ends a pause, so
        that what was kept can end too."""
        self.draining = True
        if self.paused:
            with suppress(RequestError):
                await self.resume()
            self._unpause()
        if self.live:
            try:
                await asyncio.wait_for(self._requests.none_left.wait(), timeout_s)
            except TimeoutError:
                _log.warning("%d requests have not ended within %g s", self.live, timeout_s)
        return self.live

    def fail(self, message: str) -> None:
        """Nothing can be served any more: end every request and call with `message`. Only the first call counts."""
        if self.fatal is not None:
            return
        self.fatal = message
        self._unpause()
        reason = FinishReason("abort", message=message, status_code=500, err_type="InternalServerError")
        for live in list(self._requests.live.values()):
            self._end_here(live, reason)
        self._intake.fail(message)
        for future in self._replies.values():
            if not future.done():
                future.set_exception(RequestError(message, status=500))

    # ---- what comes back

    async def run(self) -> None:
        """Receive until something fatal happens, which `fatal` then names. Start it once."""
        try:
            while self.fatal is None:
                messages = await self._link.receive()
                self.last_heartbeat = time.monotonic()
                self._feed_all([message for message in messages if isinstance(message, Output)])
                for message in messages:
                    self._dispatch(message)
                await asyncio.sleep(0)  # consumers run now: a flood of messages cannot starve them
        except Exception as error:
            self.fail(f"the tokenizer manager failed: {type(error).__name__}: {error}")
            raise RadixError(str(self.fatal)) from error

    def _dispatch(self, message: FromScheduler) -> None:
        match message:
            case ControlReply():
                future = self._replies.get(message.call)
                if future is not None and not future.done():
                    future.set_result(message)
            case SchedulerReady():
                self.ready = message
                self._metrics.ready(message)
            case SchedulerStats():
                self.stats = message
                self._metrics.stats(message)
            case FatalError():
                self.fail(message.message)

    def _feed_all(self, batches: Sequence[Output]) -> None:
        """Feed what has arrived together so that a consumer sees it as one: a busy process sends fewer, larger events
        and does not fall behind."""
        later: set[int] = set()
        laters = [later]
        for batch in reversed(batches[1:]):
            laters.append(later := later.union(batch.keys.tolist()))
        for batch in batches:
            self._feed(self._with_text(batch), laters.pop())

    def _with_text(self, batch: Output) -> BatchStrOutput:
        if isinstance(batch, BatchStrOutput):
            return batch
        if self._detokenizer is not None:
            return self._detokenizer.process(batch)
        texts = [""] * len(batch.keys)
        return BatchStrOutput(
            batch.keys, batch.counts, batch.tokens, texts, batch.started, batch.finished, batch.extras
        )

    def _feed(self, batch: BatchStrOutput, later: Set[int]) -> None:
        """Feed one batch; more is to come right after it for the requests in `later`."""
        now = self._now()
        live = self._requests.live
        for started in batch.started:
            if started.key in live:
                live[started.key].choice.started = started
        ends = {finished.key: finished for finished in batch.finished}
        tokens = batch.tokens.tolist()
        gaps: dict[float, int] = {}
        over: list[tuple[_Live, Finished]] = []
        at = 0
        for key, count, text in zip(batch.keys.tolist(), batch.counts.tolist(), batch.texts, strict=True):
            request = live.get(key)
            if request is not None:
                if count:
                    self._count(request, count, now, gaps)
                finished = ends.get(key)
                if finished is not None:
                    request.choice.finished_at = now
                request.choice.feed(text, tokens[at : at + count], finished, batch.extras.get(key), key in later)
                if finished is not None:
                    over.append((request, finished))
            at += count
        for gap_s, count in gaps.items():
            self._metrics.inter_token(gap_s * count, count)
        for request, finished in over:
            self._ended(request, finished, now)

    def _count(self, request: _Live, count: int, now: float, gaps: dict[float, int]) -> None:
        """Note `count` new tokens. `gaps` has tokens by the seconds before each: most rows of a batch share one."""
        if request.first_s is None:
            request.first_s = now - request.choice.created
            self._metrics.first_token(request.choice.stream, request.first_s)
        else:
            gap_s = (now - request.last_at) / count
            gaps[gap_s] = gaps.get(gap_s, 0) + count
        request.tokens += count
        request.last_at = now

    def _end_here(self, request: _Live, reason: FinishReason) -> None:
        """End a request that the scheduler will not end."""
        choice, now = request.choice, self._now()
        cached = 0 if choice.started is None else choice.started.cached_tokens
        finished = Finished(choice.key, reason, choice.prompt_tokens, request.tokens, cached, 0)
        choice.finished_at = now
        choice.feed("", [], finished)
        self._ended(request, finished, now)

    def _ended(self, request: _Live, finished: Finished, now: float) -> None:
        choice = request.choice
        self._requests.release(choice.rid, choice.key)
        queue_time_s = None if choice.started is None else choice.started.queue_time
        self._metrics.finished(
            finished, choice.stream, now - choice.created, request.first_s, request.tokens, queue_time_s
        )
        if finished.reason.type == "abort" and finished.reason.status_code is None:
            self._metrics.aborted()
        if self._on_ended is not None:
            self._on_ended(_record(request))


def _record(live: _Live) -> RequestRecord:
    return record_of(live.choice, live.sent_at, live.tokens, live.first_s, live.last_at)

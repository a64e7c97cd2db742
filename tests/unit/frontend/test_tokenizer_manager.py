"""The tokenizer manager against a link without an engine: what is sent, fed, refused, aborted and counted."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest

from radixlm.base.errors import RadixError, RequestError
from radixlm.config.card import GenerationDefaults, ModelCard
from radixlm.frontend.choice import Choice, ChoiceRequest, Update
from radixlm.frontend.detokenizer import Detokenizer
from radixlm.frontend.tokenizer_manager import TokenizerManager, TokenizerManagerConfig
from radixlm.observability.record import RequestRecord
from radixlm.protocol import control
from radixlm.protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    ControlReply,
    ControlReq,
    FatalError,
    Finished,
    FinishReason,
    FromScheduler,
    SchedulerReady,
    SchedulerStats,
    Started,
    TextOptions,
    TokenizedGenerateReqInput,
    ToScheduler,
)
from tests.helpers.vocabularies import byte_level

TOKENIZER = byte_level()
EOS, BOS = TOKENIZER.eos_token_ids[0], TOKENIZER.bos_token_id
VOCAB = TOKENIZER.vocab_size + 10
CARD = ModelCard(
    architecture="X", model_type="x", vocab_size=VOCAB, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1,
    num_kv_heads=1, head_dim=8, context_len=100, generation=GenerationDefaults(temperature=0.25),
)  # fmt: skip


class FakeLink:
    """Remembers what was sent; hands out what a test puts in."""

    def __init__(self) -> None:
        self.sent: list[ToScheduler] = []
        self.incoming: asyncio.Queue[FromScheduler | Exception] = asyncio.Queue()

    def send(self, message: ToScheduler) -> None:
        self.sent.append(message)

    async def receive(self) -> list[FromScheduler]:
        arrived = [await self.incoming.get()]
        while not self.incoming.empty():
            arrived.append(self.incoming.get_nowait())
        for message in arrived:
            if isinstance(message, Exception):
                raise message
        return [message for message in arrived if not isinstance(message, Exception)]

    def close(self) -> None: ...


class Counts:
    """Records every hook call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self.calls.append((name, *args))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


class World:
    """A manager that runs, its link, its metrics and its clock."""

    def __init__(self, **settings: Any) -> None:
        self.link, self.metrics, self.clock = FakeLink(), Counts(), 1000.0
        tokenizer = settings.pop("tokenizer", TOKENIZER)
        config = TokenizerManagerConfig(**{"context_len": 100, **settings})
        detokenizer = None if tokenizer is None else Detokenizer(TOKENIZER)
        self.records: list[RequestRecord] = []
        self.manager = TokenizerManager(
            config,
            CARD,
            tokenizer,
            self.link,
            detokenizer,
            self.metrics,
            now=lambda: self.clock,
            on_ended=self.records.append,
        )

    def ready(self, capacity: int) -> None:
        self.manager.ready = SchedulerReady(capacity, capacity, 8, 1, [], {})

    def start(self, choice: Choice) -> Started:
        request = self.request(choice.key)
        return Started(choice.key, len(request.input_ids), 0, 0.5, request.text)

    def request(self, key: int) -> TokenizedGenerateReqInput:
        return next(m for m in self.link.sent if isinstance(m, TokenizedGenerateReqInput) and m.key == key)

    def requests(self) -> list[TokenizedGenerateReqInput]:
        return [m for m in self.link.sent if isinstance(m, TokenizedGenerateReqInput)]

    async def put(
        self, new: dict[int, list[int]], started: list[Started] | None = None, ended: list[Finished] | None = None
    ) -> None:
        tokens = [token for group in new.values() for token in group]
        batch = BatchTokenIDOutput(
            np.asarray(list(new), np.int64),
            np.asarray([len(group) for group in new.values()], np.int32),
            np.asarray(tokens, np.int32),
            started or [],
            ended or [],
        )
        await self.link.incoming.put(batch)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


def on_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a coroutine test, cancelling whatever it leaves."""

    def wrapped() -> None:
        asyncio.run(test())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def ended(key: int, reason: FinishReason, tokens: int = 0) -> Finished:
    return Finished(key, reason, 3, tokens, 0, 0)


ABORT = FinishReason("abort", message="Aborted")


@on_loop
async def test_what_has_arrived_together_is_one_update() -> None:
    world = World()
    running = asyncio.create_task(world.manager.run())
    one, two, three = [await world.manager.submit(ChoiceRequest(text="hello", stream=True)) for _ in range(3)]
    told: list[int] = []
    for choice in (one, two, three):
        choice.watch(lambda key=choice.key: told.append(key))  # type: ignore[misc]
    starts = [world.start(choice) for choice in (one, two, three)]
    a, b = ids("a"), ids("b")
    await world.put({one.key: a, two.key: a, three.key: a}, started=starts)
    await world.put({two.key: b, three.key: b})
    await world.put({three.key: a}, ended=[ended(three.key, ABORT, 3)])
    await world.settle()
    assert told == [one.key, two.key, three.key]
    updates = [await choice.next() for choice in (one, two, three)]
    assert [(update.text, update.token_ids) for update in updates] == [("a", a), ("ab", a + b), ("aba", a + b + a)]
    assert [update.finished is not None for update in updates] == [False, False, True]
    running.cancel()


@on_loop
async def test_a_request_becomes_one_message_and_its_tokens_one_text() -> None:
    world = World()
    task = asyncio.create_task(world.manager.run())
    params = {"max_new_tokens": 9, "stop": ["END"], "sampling_seed": 5}
    choice = await world.manager.submit(ChoiceRequest(text="hello", sampling_params=params, stream=True, rid="r"))
    sent = world.request(choice.key)
    assert sent.input_ids.dtype == np.int32 and sent.input_ids.tolist() == [BOS, *ids("hello")] == choice.prompt_ids
    assert (sent.sampling.max_new_tokens, sent.sampling.seed, sent.text) == (9, 5, TextOptions(stop=("END",)))
    assert (sent.stream, sent.arrival_time, choice.rid) == (True, 1000.0, "r")
    world.clock = 1002.0
    await world.put({choice.key: ids("worldE")}, [world.start(choice)])
    first = await choice.next()
    assert (first.text, first.token_ids, first.finished) == ("world", ids("worldE"), None)
    assert choice.started is not None and choice.started.queue_time == 0.5
    world.clock = 1003.0
    await world.put({choice.key: ids("ND")}, ended=[ended(choice.key, FinishReason("stop", "END"), 8)])
    last = await choice.next()
    assert last.text == "" and last.finished is choice.finished and choice.finished_at == 1003.0
    assert world.manager.live == 0
    names = [call[0] for call in world.metrics.calls]
    assert names == ["received", "first_token", "inter_token", "finished"]
    assert world.metrics.of("first_token") == [(True, 2.0)]
    assert world.metrics.of("inter_token") == [(1.0, len(ids("ND")))]
    total = len(ids("worldE")) + len(ids("ND"))
    assert world.metrics.of("finished") == [(choice.finished, True, 3.0, 2.0, total, 0.5)]
    task.cancel()


@on_loop
async def test_updates_that_were_not_read_are_merged_in_order() -> None:
    world = World()
    task = asyncio.create_task(world.manager.run())
    one, two = await world.manager.submit_all([ChoiceRequest(text="a", stream=True), ChoiceRequest(text="b")])
    await world.put({one.key: ids("x"), two.key: ids("1")}, [world.start(two), world.start(one)])
    await world.put({two.key: ids("2"), one.key: ids("y")})
    await world.put({one.key: [EOS]}, ended=[ended(one.key, FinishReason("stop", EOS))])
    await world.settle()
    updates: list[Update] = [update async for update in one.updates()]
    assert [(u.text, u.token_ids) for u in updates] == [("xy", [*ids("x"), *ids("y"), EOS])]
    assert (await two.next()).text == "12"
    task.cancel()


@on_loop
async def test_a_stream_waits_for_its_interval_but_not_for_its_first_and_last_tokens() -> None:
    world = World(stream_interval=3)
    task = asyncio.create_task(world.manager.run())
    own = {"stream_interval": 2}
    request = ChoiceRequest(text="a", stream=True)
    usual, often = await world.manager.submit_all([request, ChoiceRequest(text="a", stream=True, sampling_params=own)])
    seen: dict[int, list[str]] = {usual.key: [], often.key: []}

    async def read(choice: Choice) -> None:
        async for update in choice.updates():
            seen[choice.key].append(update.text)

    readers = asyncio.gather(read(usual), read(often))
    for text in "abcdefg":
        new = {choice.key: ids(text) for choice in (usual, often)}
        await world.put(new, [world.start(usual), world.start(often)] if text == "a" else [])
        await world.settle()
    assert (seen[usual.key], seen[often.key]) == (["a", "bcd", "efg"], ["a", "bc", "de", "fg"])
    length = FinishReason("length", length=8)
    await world.put({usual.key: ids("h"), often.key: ids("h")}, ended=[ended(c.key, length, 8) for c in (usual, often)])
    await readers
    assert seen[usual.key][-1] == seen[often.key][-1] == "h"
    task.cancel()


@on_loop
async def test_a_full_queue_refuses_before_anything_is_sent() -> None:
    """8 may run (see `ready`), 2 may wait."""
    world = World(max_queued_requests=2)
    task = asyncio.create_task(world.manager.run())
    world.ready(100)
    one = ChoiceRequest(text="a")
    with pytest.raises(RequestError):
        await world.manager.submit_all([one] * 11)
    choices = await world.manager.submit_all([one] * 10)
    with pytest.raises(RequestError, match=r"^The request queue is full\.$") as full:
        await world.manager.submit(one)
    assert full.value.status == 503 and len(world.requests()) == 10 == world.manager.live
    await world.put({choices[0].key: []}, ended=[ended(choices[0].key, ABORT)])
    await world.settle()
    await world.manager.submit(one)
    task.cancel()


@on_loop
async def test_the_queue_is_counted_by_what_really_runs_where_that_is_known() -> None:
    """The KV pool lets only 3 of 8 run; an idle pulse and one before admission say nothing of that."""
    world = World(max_queued_requests=2)
    world.ready(100)
    one = ChoiceRequest(text="a")
    for running, queued, accepted in ((0, 0, True), (3, 0, True), (0, 4, True), (3, 1, False), (4, 1, True)):
        world.manager.stats = None
        await world.manager.submit_all([one] * (5 - world.manager.live))
        world.manager.stats = SchedulerStats(time=0, step=1, num_running_reqs=running, num_queue_reqs=queued)
        if accepted:
            choice = await world.manager.submit(one)
            world.manager._end_here(world.manager._requests.live[choice.key], ABORT)
        else:
            with pytest.raises(RequestError, match="queue is full"):
                await world.manager.submit(one)


@on_loop
async def test_a_pause_holds_new_requests_back_until_it_ends() -> None:
    world = World()
    task = asyncio.create_task(world.manager.run())

    async def call(work: Coroutine[Any, Any, None]) -> control.PauseReq | control.ContinueReq:
        calling = asyncio.create_task(work)
        await world.settle()
        request = world.link.sent[-1]
        assert isinstance(request, ControlReq)
        reply = msgspec.msgpack.encode(control.DoneReply("done"))
        await world.link.incoming.put(ControlReply(request.call, reply))
        await calling
        decoded = msgspec.msgpack.decode(request.body, type=control.BY_NAME[request.verb].request)
        assert isinstance(decoded, control.PauseReq | control.ContinueReq)
        return decoded

    assert await call(world.manager.pause("retract")) == control.PauseReq("retract")
    held = asyncio.create_task(world.manager.submit(ChoiceRequest(text="a")))
    await world.settle()
    assert world.manager.paused and not held.done() and not world.requests()
    await call(world.manager.resume())
    await held
    assert not world.manager.paused and len(world.requests()) == 1
    task.cancel()


@on_loop
async def test_a_pause_that_aborts_returns_when_nobody_is_left() -> None:
    world = World()
    task = asyncio.create_task(world.manager.run())
    one, two = await world.manager.submit_all([ChoiceRequest(text="a"), ChoiceRequest(text="b")])
    pausing = asyncio.create_task(world.manager.pause("abort"))
    await world.settle()
    assert isinstance(world.link.sent[-1], AbortReq) and not pausing.done()
    await world.put({one.key: [], two.key: []}, ended=[ended(one.key, ABORT), ended(two.key, ABORT)])
    await asyncio.wait_for(pausing, 1)
    held = asyncio.create_task(world.manager.submit(ChoiceRequest(text="a")))
    await world.settle()
    assert not any(isinstance(message, ControlReq) for message in world.link.sent) and not held.done()
    world.manager.fail("it broke")
    with pytest.raises(RequestError, match="it broke"):
        await held
    task.cancel()


@on_loop
async def test_a_refused_pause_is_none() -> None:
    world = World(control_timeout_s=0.01)
    with pytest.raises(RequestError):
        await world.manager.pause("in_place")
    assert not world.manager.paused
    await world.manager.submit(ChoiceRequest(text="a"))


@on_loop
async def test_draining_ends_a_pause() -> None:
    world = World(control_timeout_s=0.01)
    world.manager.paused = True
    world.manager._open.clear()
    held = asyncio.create_task(world.manager.submit(ChoiceRequest(text="a")))
    await world.settle()
    assert await world.manager.drain(1) == 0
    with pytest.raises(RequestError, match="shutting down"):
        await held
    assert [type(message) for message in world.link.sent] == [ControlReq]


@on_loop
async def test_all_or_nothing() -> None:
    world = World()
    good = ChoiceRequest(text="a", rid="good")
    for bad in (ChoiceRequest(input_ids=[VOCAB]), ChoiceRequest(text="a", rid="good"), ChoiceRequest(text="x" * 900)):
        with pytest.raises(RequestError):
            await world.manager.submit_all([good, bad])
        assert world.link.sent == [] and world.manager.live == 0
    assert len(await world.manager.submit_all([good, ChoiceRequest(text="b")])) == 2


@on_loop
async def test_a_request_id_is_taken_until_its_request_has_ended() -> None:
    world = World()
    task = asyncio.create_task(world.manager.run())
    choice = await world.manager.submit(ChoiceRequest(text="a", rid="same"))
    with pytest.raises(RequestError, match="same") as caught:
        await world.manager.submit(ChoiceRequest(text="a", rid="same"))
    assert caught.value.field == "rid"
    await world.put({choice.key: []}, [world.start(choice)], [ended(choice.key, ABORT)])
    await world.settle()
    again = await world.manager.submit(ChoiceRequest(text="a", rid="same"))
    assert again.key != choice.key
    task.cancel()


@on_loop
async def test_aborts_are_sent_once_and_confirmed_by_the_scheduler() -> None:
    world = World()
    task = asyncio.create_task(world.manager.run())
    manager = world.manager
    one, two, three = await manager.submit_all([ChoiceRequest(text="a", rid=rid) for rid in ("a", "ab", "c")])
    assert manager.abort("nobody") == manager.abort("") == manager.abort(None) == 0
    assert manager.abort("a") == 1 and manager.abort("a") == 0
    one.abort()
    manager.abort_key(one.key)
    assert manager.abort(None, abort_all=True) == 2
    assert [m.keys for m in world.link.sent if isinstance(m, AbortReq)] == [[one.key], [two.key, three.key]]
    assert manager.live == 3 and one.finished is None
    ends = [ended(choice.key, ABORT) for choice in (one, two)] + [ended(three.key, FinishReason("stop", EOS), 1)]
    await world.put({one.key: [], two.key: ids("x"), three.key: [EOS]}, [world.start(three)], ends)
    await world.settle()
    assert manager.live == 0
    assert one.finished is not None and one.finished.reason == ABORT
    assert len(world.metrics.of("finished")) == 3 and len(world.metrics.of("aborted")) == 2
    for choice in (one, two, three):
        choice.abort()
        manager.abort_key(choice.key)
    assert sum(isinstance(m, AbortReq) for m in world.link.sent) == 2
    task.cancel()


@on_loop
async def test_an_abort_during_tokenizing_stops_the_request_before_it_is_sent() -> None:
    world = World(context_len=10**6)
    long = ChoiceRequest(text="word " * 20_000, rid="long")
    submitting = asyncio.create_task(world.manager.submit(long))
    await asyncio.sleep(0)
    assert world.manager.live == 1 and world.manager.abort("long") == 1 and world.manager.abort("long") == 0
    choice = await submitting
    assert (await choice.next()).finished is choice.finished
    assert choice.finished is not None and choice.finished.reason.type == "abort"
    assert world.link.sent == [] and world.manager.live == 0
    submitting = asyncio.create_task(world.manager.submit(long))
    await asyncio.sleep(0)
    submitting.cancel()
    await asyncio.gather(submitting, return_exceptions=True)
    assert world.link.sent == [] and world.manager.live == 0


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ChoiceRequest(input_ids=[5, VOCAB + 50]), "input_ids"),
        (ChoiceRequest(input_ids=[5, -1]), "input_ids"),
        (ChoiceRequest(input_ids=[5, True]), "input_ids"),
        (ChoiceRequest(input_ids=[5, 2**70]), "input_ids"),
        (ChoiceRequest(input_ids=[]), "input_ids"),
        (ChoiceRequest(text="", add_special_tokens=False), "text"),
        (ChoiceRequest(text="\ud800"), "text"),
        (ChoiceRequest(text="a", input_ids=[1]), "text"),
        (ChoiceRequest(), "text"),
        (ChoiceRequest(text="a", sampling_params={"temperature": -1}), "temperature"),
        (ChoiceRequest(text="a", sampling_params={"max_new_tokens": 200}), "max_new_tokens"),
    ],
)
def test_refusals_name_the_field(request_: ChoiceRequest, field: str) -> None:
    world = World()
    with pytest.raises(RequestError) as caught:
        asyncio.run(world.manager.submit(request_))
    assert (caught.value.field, caught.value.status) == (field, 400)
    assert world.link.sent == [] and world.manager.live == 0


@on_loop
async def test_a_foreign_token_id_is_refused_with_its_place() -> None:
    with pytest.raises(RequestError, match=rf"input_ids\[1\] is {VOCAB + 50}.*\[0, {VOCAB}\)"):
        await World().manager.submit(ChoiceRequest(input_ids=[5, VOCAB + 50]))


@on_loop
async def test_the_kv_pool_limits_prompts_and_outputs() -> None:
    world = World()
    world.ready(20)
    with pytest.raises(RequestError, match="KV cache, which holds 20 tokens") as caught:
        await world.manager.submit(ChoiceRequest(input_ids=[1] * 40))
    assert caught.value.code == "context_length_exceeded"
    await world.manager.submit(ChoiceRequest(input_ids=[1] * 5, sampling_params={"max_new_tokens": None}))
    await world.manager.submit(
        ChoiceRequest(input_ids=[1] * 19, sampling_params={"max_new_tokens": 9, "min_new_tokens": 9})
    )
    first, second = (message.sampling for message in world.requests())
    assert first.max_new_tokens == 15
    assert (second.max_new_tokens, second.min_new_tokens) == (1, 1)


@on_loop
async def test_truncation_leaves_room_for_the_answer_and_says_so() -> None:
    world = World(allow_auto_truncate=True)
    tokens = list(range(200)) + list(range(100))
    choice = await world.manager.submit(ChoiceRequest(input_ids=tokens, sampling_params={"max_new_tokens": 8}))
    assert choice.truncated_tokens == 208 and choice.prompt_ids == tokens[:92]
    assert world.request(choice.key).sampling.max_new_tokens == 8


@pytest.mark.parametrize(("text", "special"), [("<s>hi", True), ("hi", True), ("<s>hi", False)])
def test_there_is_one_bos(text: str, special: bool) -> None:
    choice = asyncio.run(World().manager.submit(ChoiceRequest(text=text, add_special_tokens=special)))
    assert choice.prompt_ids == [BOS, *ids("hi")]


@on_loop
async def test_generation_defaults_are_applied_when_asked() -> None:
    world = World()
    for applied in (True, False):
        await world.manager.submit(ChoiceRequest(text="a", apply_generation_defaults=applied))
    assert [message.sampling.temperature for message in world.requests()] == [0.25, 1.0]


@on_loop
async def test_without_a_tokenizer_only_ids_are_served() -> None:
    world = World(tokenizer=None)
    task = asyncio.create_task(world.manager.run())
    for request in (
        ChoiceRequest(text="a"),
        ChoiceRequest(input_ids=[1], sampling_params={"stop": "x"}),
        ChoiceRequest(input_ids=[1], sampling_params={"min_new_tokens": 1}),
    ):
        with pytest.raises(RequestError, match="needs a tokenizer"):
            await world.manager.submit(request)
    choice = await world.manager.submit(ChoiceRequest(input_ids=[1]))
    await world.put(
        {choice.key: [7, 8]}, [world.start(choice)], [ended(choice.key, FinishReason("length", length=2), 2)]
    )
    update = await choice.next()
    assert (update.text, update.token_ids) == ("", [7, 8])
    task.cancel()


@on_loop
async def test_control_calls_find_their_own_replies() -> None:
    world = World(control_timeout_s=0.05)
    task = asyncio.create_task(world.manager.run())
    calls = [asyncio.create_task(world.manager.control("flush_cache", control.Empty())) for _ in range(3)]
    await world.settle()
    first, second, third = (m.call for m in world.link.sent if isinstance(m, ControlReq))
    body = msgspec.msgpack.encode(control.FlushCacheReply(True, "two"))
    await world.link.incoming.put(ControlReply(second, body))
    await world.link.incoming.put(ControlReply(first, error="busy", status=409))
    assert await calls[1] == control.FlushCacheReply(True, "two")
    with pytest.raises(RequestError, match="busy") as caught:
        await calls[0]
    assert caught.value.status == 409
    with pytest.raises(RequestError, match=r"flush_cache: the scheduler has not answered within 0\.05 s") as caught:
        await calls[2]
    assert caught.value.status == 503
    await world.link.incoming.put(ControlReply(third, body))  # too late, and harmless
    await world.settle()
    assert not task.done()
    task.cancel()


@on_loop
async def test_a_fatal_error_ends_everything_with_its_cause() -> None:
    world = World()
    task = asyncio.create_task(world.manager.run())
    choice = await world.manager.submit(ChoiceRequest(text="a", stream=True))
    call = asyncio.create_task(world.manager.control("flush_cache", control.Empty()))
    await world.put({choice.key: ids("x")}, [world.start(choice)])
    await world.settle()
    await world.link.incoming.put(FatalError("out of memory"))
    await asyncio.wait_for(task, 5)
    assert world.manager.fatal == "out of memory" and not world.manager.healthy(time.monotonic())
    update = await choice.next()
    assert update.text == "x" and update.finished is not None
    reason = update.finished.reason
    assert (reason.type, reason.status_code, reason.message) == ("abort", 500, "out of memory")
    assert update.finished.completion_tokens == 1
    with pytest.raises(RequestError, match="out of memory"):
        await call
    for again in (world.manager.submit(ChoiceRequest(text="a")), world.manager.control("flush_cache", control.Empty())):
        with pytest.raises(RequestError, match="out of memory") as caught:
            await again
        assert caught.value.status == 503
    assert world.manager.live == 0 and world.metrics.of("aborted") == []


@on_loop
async def test_a_failure_during_tokenizing_refuses_the_request() -> None:
    world = World(context_len=10**6)
    submitting = asyncio.create_task(world.manager.submit(ChoiceRequest(text="word " * 20_000)))
    await asyncio.sleep(0)
    world.manager.fail("the scheduler died")
    with pytest.raises(RequestError, match="the scheduler died") as caught:
        await submitting
    assert caught.value.status == 503 and world.link.sent == [] and world.manager.live == 0


@on_loop
async def test_a_broken_link_is_fatal_too() -> None:
    world = World()
    choice = await world.manager.submit(ChoiceRequest(text="a"))
    await world.link.incoming.put(ValueError("garbled"))
    with pytest.raises(RadixError, match="garbled"):
        await world.manager.run()
    assert (await choice.next()).finished is not None and world.manager.fatal is not None


@on_loop
async def test_draining_refuses_new_requests_and_waits_for_the_rest() -> None:
    world = World()
    task = asyncio.create_task(world.manager.run())
    choice = await world.manager.submit(ChoiceRequest(text="a"))
    assert await world.manager.drain(0.01) == 1
    with pytest.raises(RequestError) as caught:
        await world.manager.submit(ChoiceRequest(text="a"))
    assert caught.value.status == 503
    draining = asyncio.create_task(world.manager.drain(10))
    await world.put({choice.key: []}, [world.start(choice)], [ended(choice.key, ABORT)])
    assert await draining == 0
    assert await world.manager.drain(10) == 0
    task.cancel()


@on_loop
async def test_signs_of_life() -> None:
    world = World()
    now = time.monotonic()
    assert not world.manager.healthy(now)
    task = asyncio.create_task(world.manager.run())
    ready, stats = SchedulerReady(50, 60, 8, 1, [], {}), SchedulerStats(time=1.0, step=4, num_running_reqs=2)
    await world.link.incoming.put(ready)
    await world.link.incoming.put(stats)
    await world.settle()
    assert world.manager.ready == ready and world.manager.stats == stats
    assert world.metrics.of("stats") == [(stats,)] and world.metrics.of("ready") == [(ready,)]
    now = time.monotonic()
    assert world.manager.healthy(now) and world.manager.healthy(now + 19) and not world.manager.healthy(now + 21)
    task.cancel()


@on_loop
async def test_many_choices_a_batch_are_cheap_and_their_readers_are_not_starved() -> None:
    count, steps = 2000, 5
    world = World()
    task = asyncio.create_task(world.manager.run())
    choices = await world.manager.submit_all(
        [ChoiceRequest(input_ids=[1], stream=True, sampling_params={"max_new_tokens": 50})] * count
    )
    starts = [world.start(choice) for choice in choices]
    reads: dict[int, list[str]] = {choice.key: [] for choice in choices}

    async def read(choice: Choice) -> None:
        async for update in choice.updates():
            reads[choice.key].append(update.text)

    readers = [asyncio.create_task(read(choice)) for choice in choices]
    token = ids("x")
    begun = time.perf_counter()
    for step in range(steps):
        last = step == steps - 1
        ends = [ended(choice.key, FinishReason("length", length=steps), steps) for choice in choices] if last else []
        await world.put({choice.key: token for choice in choices}, [] if step else starts, ends)
        await world.settle()
    await asyncio.gather(*readers)
    elapsed = time.perf_counter() - begun
    assert all("".join(texts) == "x" * steps for texts in reads.values())
    assert all(len(texts) == steps for texts in reads.values())  # every reader ran between two batches
    assert elapsed / steps < 0.5, f"{elapsed / steps * 1e3:.0f} ms a batch"
    assert world.manager.live == 0
    task.cancel()


def test_importing_the_manager_loads_no_model_library() -> None:
    import subprocess
    import sys

    code = "import sys, radixlm.frontend.tokenizer_manager; print({'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@on_loop
async def test_records_of_running_and_ended_requests() -> None:
    world = World()
    running = asyncio.create_task(world.manager.run())
    first = await world.manager.submit(ChoiceRequest(text="abc", stream=True, trace_parent="00-a-b-01"))
    second = await world.manager.submit(ChoiceRequest(text="de", stream=True))
    assert [record.rid for record in world.manager.records(10)] == [second.rid, first.rid]
    assert [record.rid for record in world.manager.records(1)] == [second.rid]
    world.clock += 1.5
    await world.put({first.key: ids("x")}, [world.start(first)])
    await world.settle()
    world.clock += 1.0
    [_, live] = world.manager.records(10)
    assert (live.output_tokens, live.first_token_s, live.last_token_s, live.ended_s) == (1, 1.5, 1.5, None)
    await world.put({first.key: ids("yz")}, None, [ended(first.key, FinishReason("stop"), 3)])
    await world.settle()
    [record] = world.records
    assert (record.rid, record.reason, record.stream, record.prompt_tokens) == (first.rid, "stop", True, 4)
    assert (record.queue_time_s, record.first_token_s, record.ended_s, record.output_tokens) == (0.5, 1.5, 2.5, 3)
    assert record.inter_token_s == 0.5 and record.trace_parent == "00-a-b-01"
    running.cancel()


@on_loop
async def test_a_request_that_cannot_be_sent_is_forgotten() -> None:
    world = World()

    def refuse(message: object) -> None:
        raise OverflowError("no integer of this size")

    with mock.patch.object(world.link, "send", refuse), pytest.raises(OverflowError):
        await world.manager.submit(ChoiceRequest(text="Hello", rid="mine"))
    assert world.manager.live == 0
    await world.manager.submit(ChoiceRequest(text="Hello", rid="mine"))


@on_loop
async def test_what_cannot_fit_is_refused_before_it_is_tokenized() -> None:
    world = World()
    with pytest.raises(RequestError, match="however it is tokenized") as caught:
        await world.manager.submit(ChoiceRequest(text="a" * 1_000_000))
    assert (caught.value.field, caught.value.code) == ("text", "context_length_exceeded")
    with pytest.raises(RequestError, match="priority"):
        await world.manager.submit(ChoiceRequest(text="Hello", priority=2**63))

"""Every control verb has a handler, and what goes wrong becomes a reply."""

import msgspec

from radixlm.cache.manager import CacheManager
from radixlm.config.groups import ScheduleConfig
from radixlm.engine.control import Controls
from radixlm.protocol import control
from radixlm.protocol.messages import ControlReply, ControlReq
from radixlm.scheduler.limits import SchedulerLimits
from radixlm.scheduler.scheduler import Scheduler


def controls() -> Controls:
    limits = SchedulerLimits(capacity_tokens=64, context_len=64, max_running_requests=4, vocab_size=10)
    config = ScheduleConfig(max_running_requests=4, chunked_prefill_size=16)
    return Controls(Scheduler(config, CacheManager(16, 4), limits, None))


def test_flush_and_state() -> None:
    flush = controls().answer(ControlReq(1, "flush_cache"), 0.0)
    assert flush.error is None
    assert msgspec.msgpack.decode(flush.body, type=control.FlushCacheReply).success
    state = controls().answer(ControlReq(2, "internal_state"), 0.0)
    shown = msgspec.msgpack.decode(state.body, type=control.InternalStateReply).state
    assert shown["kv_available_tokens"] == shown["max_total_num_tokens"] == 64


def test_an_unknown_verb_and_a_bad_body_are_replies() -> None:
    unknown = controls().answer(ControlReq(3, "explode"), 0.0)
    assert (unknown.call, unknown.status) == (3, 404) and "explode" in (unknown.error or "")
    bad = controls().answer(ControlReq(4, "flush_cache", msgspec.msgpack.encode(7)), 0.0)
    assert isinstance(bad, ControlReply) and bad.status == 400


def test_every_verb_is_answered() -> None:
    for verb in control.VERBS:
        assert controls().answer(ControlReq(1, verb.name), 0.0).status != 404, verb.name

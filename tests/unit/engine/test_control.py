"""Every control verb has a handler, and what goes wrong becomes a reply."""

import gzip
import json
from pathlib import Path

import msgspec
import pytest
import torch

from radixlm.base.errors import RequestError
from radixlm.cache.manager import CacheManager
from radixlm.config.groups import ScheduleConfig
from radixlm.engine.control import Controls
from radixlm.engine.profiler import StepProfiler
from radixlm.protocol import control
from radixlm.protocol.messages import ControlReply, ControlReq
from radixlm.scheduler.limits import SchedulerLimits
from radixlm.scheduler.scheduler import Scheduler


def controls() -> Controls:
    limits = SchedulerLimits(capacity_tokens=64, context_len=64, max_running_requests=4, vocab_size=10)
    config = ScheduleConfig(max_running_requests=4, chunked_prefill_size=16)
    weights = {"norm.weight": torch.arange(6, dtype=torch.bfloat16), "head.weight": torch.ones(3, 2)}
    return Controls(Scheduler(config, CacheManager(16, 4), limits, None), StepProfiler(), weights.get)


def test_flush_and_state() -> None:
    flush = controls().answer(ControlReq(1, "flush_cache"), 0.0)
    assert flush.error is None
    assert msgspec.msgpack.decode(flush.body, type=control.FlushCacheReply).success
    state = controls().answer(ControlReq(2, "internal_state"), 0.0)
    shown = msgspec.msgpack.decode(state.body, type=control.InternalStateReply).state
    assert shown["kv_available_tokens"] == shown["max_total_num_tokens"] == 64
    assert shown["process_cpu_s_total"] > 0


def test_an_unknown_verb_and_a_bad_body_are_replies() -> None:
    unknown = controls().answer(ControlReq(3, "explode"), 0.0)
    assert (unknown.call, unknown.status) == (3, 404) and "explode" in (unknown.error or "")
    bad = controls().answer(ControlReq(4, "flush_cache", msgspec.msgpack.encode(7)), 0.0)
    assert isinstance(bad, ControlReply) and bad.status == 400


def test_every_verb_is_answered() -> None:
    for verb in control.VERBS:
        if verb.name == "start_profile":
            continue  # it would record
        assert controls().answer(ControlReq(1, verb.name), 0.0).status != 404, verb.name


def test_weights_by_name() -> None:
    def ask(name: str, rows: int) -> ControlReply:
        body = msgspec.msgpack.encode(control.WeightReq(name, rows))
        return controls().answer(ControlReq(1, "get_weights_by_name", body), 0.0)

    assert msgspec.msgpack.decode(ask("norm.weight", 4).body, type=control.WeightReply).values == [0, 1, 2, 3]
    assert msgspec.msgpack.decode(ask("head.weight", 2).body, type=control.WeightReply).values == [[1, 1], [1, 1]]
    assert ask("no.weight", 4).status == 400


def test_a_profile_of_two_steps_after_one(tmp_path: Path) -> None:
    profiler = StepProfiler()
    path = profiler.start(
        control.StartProfileReq(output_dir=str(tmp_path), start_step=1, num_steps=2, activities=["CPU"], profile_id="x")
    )
    with pytest.raises(RequestError, match="already"):
        profiler.start(control.StartProfileReq())
    for _ in range(3):
        assert profiler.active
        torch.ones(4).add(1)
        profiler.stepped()
    assert not profiler.active and path == tmp_path / "x-TP-0.trace.json.gz"
    names = [event.get("name") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]]
    assert names.count("aten::add") == 2  # not the one before start_step
    with pytest.raises(RequestError, match="not in progress"):
        profiler.stop()

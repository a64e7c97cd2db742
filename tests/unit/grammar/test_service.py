"""Compiling off the caller's thread: tried out in a process that may be killed, kept, and never waited for."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest

from radixlm.grammar.base import (
    Grammar,
    GrammarError,
    GrammarTimeout,
    GrammarTooHeavy,
    GrammarUnsupported,
    Source,
    Vocabulary,
)
from radixlm.grammar.clock import Clock
from radixlm.grammar.judge import Judge
from radixlm.grammar.service import QUICK_CPU_S, SLOW_CPU_S, CompileService
from tests.unit.grammar.vocabulary import VOCABULARY, follows


class FakeJudge(Judge):
    """Lets everything pass, or does what `verdict` does with the source and the limits."""

    def __init__(self, verdict: Callable[[Source, float, float], None]) -> None:
        super().__init__(VOCABULARY)
        self.tried: list[Source] = []
        self._verdict = verdict

    def prepare(self, backend: str) -> None:
        """No process."""

    def await_ready(self) -> None:
        """Nothing to wait for."""

    def try_out(self, backend: str, source: Source, cpu_s: float, wall_s: float) -> None:
        self.tried.append(source)
        self._verdict(source, cpu_s, wall_s)


def good(source: Source, cpu_s: float, wall_s: float) -> None:
    """Everything is."""


def service(judge: Judge | None = None, backend: str = "llguidance", deadline_s: float = 10.0) -> CompileService:
    def made(vocabulary: Vocabulary) -> Judge:
        return judge or Judge(vocabulary)

    return CompileService(VOCABULARY, backend, deadline_s, made)


def wait(asked: CompileService, source: Source, limit_s: float = 60.0) -> Grammar:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        began = time.monotonic()
        grammar = asked.ask(source)
        assert time.monotonic() - began < 0.5
        if grammar is not None:
            return grammar
        time.sleep(0.005)
    raise AssertionError("no answer")


def test_compiled_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixlm.grammar.service.MOST_KEPT", 8)
    judge = FakeJudge(good)
    asked = service(judge)
    source = Source("regex", "ab")
    first = wait(asked, source)
    assert follows(first, b"ab") and wait(asked, Source("regex", "ab")) is first
    assert judge.tried == [source]
    for number in range(8):
        wait(asked, Source("regex", f"a{{{number}}}"))
    assert wait(asked, source) is not first  # the least recently used made room


def test_failures_are_kept_and_timeouts_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(source: Source, cpu_s: float, wall_s: float) -> None:
        if source.text == "slow":
            raise GrammarTimeout("too slow")
        raise GrammarError("never")

    judge = FakeJudge(slow)
    asked = service(judge)

    def ask_all() -> list[str]:
        for text in ("slow", "bad", "slow", "bad"):
            with pytest.raises(GrammarError, match="longer than 10 s" if text == "slow" else "never"):
                wait(asked, Source("regex", text))
        return [source.text for source in judge.tried]

    assert ask_all() == ["slow", "bad"]
    monkeypatch.setattr("radixlm.grammar.service.TIMEOUT_KEPT_S", 0.1)
    judge.tried.clear()
    asked = service(judge)
    ask_all()
    time.sleep(0.15)
    ask_all()
    assert [source.text for source in judge.tried] == ["slow", "bad", "slow"]


def test_what_is_made_after_its_asker_has_gone_is_kept_and_not_held_twice() -> None:
    asked = service(FakeJudge(good))
    assert asked.ask(Source("regex", "left")) is None  # and its client hangs up
    wait(asked, Source("regex", "other"))
    assert asked._pending == {}


def test_auto_takes_the_best_that_enforces_all_of_it() -> None:
    asked = service(FakeJudge(good), backend="auto")
    assert type(wait(asked, Source("json_schema", '{"type": "integer"}'))).__module__.endswith("xgrammar")
    assert type(wait(asked, Source("json_schema", '{"multipleOf": 3}'))).__module__.endswith("llguidance")
    with pytest.raises(GrammarError, match="outlines: it has no ebnf"):
        wait(service(backend="outlines"), Source("ebnf", 'root ::= "a"'))


def test_auto_goes_on_to_a_backend_that_supports_it_and_tells_the_first_ones_reason() -> None:
    class Picky(FakeJudge):
        def __init__(self) -> None:
            super().__init__(good)
            self.names: list[str] = []

        def try_out(self, backend: str, source: Source, cpu_s: float, wall_s: float) -> None:
            self.names.append(backend)
            if backend != "outlines" or source.text == "b":
                raise GrammarUnsupported(f"{backend} cannot")

    judge = Picky()
    asked = service(judge, backend="auto")
    assert type(wait(asked, Source("regex", "a"))).__module__.endswith("outlines")
    assert judge.names == ["xgrammar", "llguidance", "outlines"]
    with pytest.raises(GrammarError, match="xgrammar cannot"):
        wait(asked, Source("regex", "b"))


def test_one_deadline_for_all_stages_and_all_who_ask() -> None:
    """A lane's trial and the making after it: the verdict comes at the deadline. Who waits for a lane loses nothing."""
    stuck = threading.Event()

    def hang(source: Source, cpu_s: float, wall_s: float) -> None:
        if source.text != "late" and cpu_s == QUICK_CPU_S:
            raise GrammarTooHeavy("more than that")
        if source.text.startswith("h") and not stuck.wait(wall_s):
            raise GrammarTimeout("more than that")

    asked = service(FakeJudge(hang), deadline_s=0.3)
    began = time.monotonic()
    sources = [Source("regex", "h1"), Source("regex", "h2"), Source("regex", "h3")]
    queued = Source("regex", "queued")
    assert [asked.ask(source) for source in (*sources, queued)] == [None] * 4
    for source in sources * 2:
        with pytest.raises(GrammarTimeout, match=r"longer than 0\.3 s"):
            wait(asked, source)
    assert time.monotonic() - began < 3
    assert follows(wait(asked, queued), b"queued")
    stuck.set()
    assert follows(wait(asked, Source("regex", "late")), b"late")
    asked.close()


def test_small_grammars_do_not_wait_behind_heavy_ones() -> None:
    """What needs more than its share of the quick lane goes on in the slow one, and holds up its like only."""
    stuck = threading.Event()

    def heavy(source: Source, cpu_s: float, wall_s: float) -> None:
        if source.text.startswith("heavy") and cpu_s == QUICK_CPU_S:
            raise GrammarTooHeavy("more than that")
        if source.text.startswith("heavy"):
            assert cpu_s == SLOW_CPU_S
            stuck.wait(20)

    asked = service(FakeJudge(heavy))
    hard = [Source("regex", f"heavy{number}") for number in range(4)]
    assert [asked.ask(source) for source in hard] == [None] * 4
    began = time.monotonic()
    assert follows(wait(asked, Source("regex", "small")), b"small")
    assert time.monotonic() - began < 2 and asked.ask(hard[0]) is None
    stuck.set()
    assert all(follows(wait(asked, source), source.text.encode()) for source in hard)
    asked.close()


def test_the_clock_stands_still_while_a_library_is_loaded() -> None:
    now = [10.0]
    clock = Clock(lambda: now[0])
    with clock.stopped():
        now[0] += 5
        with clock.stopped():
            now[0] += 5
        assert clock.now_s() == 10
    now[0] += 1
    assert clock.now_s() == 11


def test_the_trial_process_ends_what_is_too_much_and_goes_on() -> None:
    """Each grammar in a fork: killed by processor time or by wall time, it leaves the process ready for the next."""
    judge = Judge(VOCABULARY)
    heavy = Source("regex", "(a{1,1000}){1,1000}")
    try:
        judge.try_out("outlines", Source("regex", "a"), 5.0, 60.0)
        process_id, began = judge.process_id, time.monotonic()
        with pytest.raises(GrammarTooHeavy, match=r"more than 0\.2 s of processor time"):
            judge.try_out("outlines", heavy, 0.2, 60.0)
        with pytest.raises(GrammarTimeout):
            judge.try_out("outlines", heavy, 60.0, 0.2)
        judge.try_out("outlines", Source("regex", "b"), 5.0, 60.0)
        assert judge.process_id == process_id and time.monotonic() - began < 10
        assert process_id is not None
        os.kill(process_id, signal.SIGKILL)
        judge.try_out("outlines", Source("regex", "b"), 5.0, 60.0)  # one that dies is replaced
    finally:
        judge.end()


def test_what_the_trial_process_finds_is_told() -> None:
    asked = service()
    try:
        with pytest.raises(GrammarError, match="regular expression"):
            wait(asked, Source("regex", "(("))
        with pytest.raises(GrammarError, match="no value follows"):
            wait(asked, Source("json_schema", '{"type": "string", "const": 1}'))
        assert follows(wait(asked, Source("regex", "ab")), b"ab")
    finally:
        asked.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no cores of their own")
def test_compiling_keeps_the_cores_there_were_before_the_model_took_its_own() -> None:
    cores = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    asked = service(FakeJudge(lambda *_: seen.append(os.sched_getaffinity(0))))
    try:
        os.sched_setaffinity(0, {min(cores)})
        wait(asked, Source("regex", "a"))
    finally:
        os.sched_setaffinity(0, cores)
        asked.close()
    assert seen == [cores]

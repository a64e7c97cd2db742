"""Compiling off the caller's thread: tried out in a process that may be killed, kept, and never waited for."""

import time
from collections.abc import Callable

import pytest

from radixlm.grammar.base import Grammar, GrammarError, GrammarTimeout, Source, Vocabulary
from radixlm.grammar.judge import Judge
from radixlm.grammar.service import MOST_KEPT, CompileService
from radixlm.protocol.grammar import Kind
from tests.unit.grammar.vocabulary import VOCABULARY, follows


class FakeJudge(Judge):
    """Lets everything pass, or does what `verdict` does."""

    def __init__(self, verdict: Callable[[Source], None]) -> None:
        super().__init__(VOCABULARY)
        self.tried: list[Source] = []
        self._verdict = verdict

    def prepare(self, backend: str) -> None:
        """No process."""

    def try_out(self, backend: str, source: Source) -> None:
        self.tried.append(source)
        self._verdict(source)


def service(judge: Judge | None = None, backend: str = "llguidance", deadline_s: float = 10.0) -> CompileService:
    def made(vocabulary: Vocabulary, deadline_s: float) -> Judge:
        return judge or Judge(vocabulary, deadline_s)

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


def test_compiled_once_and_kept() -> None:
    judge = FakeJudge(lambda source: None)
    asked = service(judge)
    source = Source("regex", "ab")
    first = wait(asked, source)
    assert follows(first, b"ab") and wait(asked, Source("regex", "ab")) is first
    assert judge.tried == [source] and asked.tally.hits == 1 and len(asked.tally.seconds) == 1
    for number in range(MOST_KEPT):
        wait(asked, Source("regex", f"a{{{number}}}"))
    assert wait(asked, source) is not first  # the least recently used made room


def test_failures_are_kept_but_not_timeouts() -> None:
    def slow(source: Source) -> None:
        if source.text == "slow":
            raise GrammarTimeout("too slow")
        raise GrammarError("never")

    judge = FakeJudge(slow)
    asked = service(judge)
    for text in ("slow", "bad", "slow", "bad"):
        with pytest.raises(GrammarError, match="too slow" if text == "slow" else "never"):
            wait(asked, Source("regex", text))
    assert [source.text for source in judge.tried] == ["slow", "bad", "slow"]
    assert (asked.tally.timeouts, asked.tally.failed) == (2, 1)


def test_auto_takes_the_best_that_enforces_all_of_it() -> None:
    asked = service(FakeJudge(lambda source: None), backend="auto")
    assert type(wait(asked, Source("json_schema", '{"type": "integer"}'))).__module__.endswith("xgrammar")
    assert type(wait(asked, Source("json_schema", '{"multipleOf": 3}'))).__module__.endswith("llguidance")
    with pytest.raises(GrammarError, match="outlines: it has no ebnf"):
        wait(service(backend="outlines"), Source("ebnf", 'root ::= "a"'))


@pytest.mark.parametrize(
    ("backend", "kind", "text", "words"),
    [
        ("outlines", "regex", "(a{1,1000}){1,1000}", "longer than 2 s"),
        ("llguidance", "regex", "((", "regex"),
        ("llguidance", "json_schema", '{"type": "string", "const": 1}', "."),
    ],
)
def test_the_trial_process(backend: str, kind: Kind, text: str, words: str) -> None:
    """It answers, or is killed at the deadline; the next grammar finds one that works."""
    asked = service(backend=backend, deadline_s=2.0)
    try:
        began = time.monotonic()
        with pytest.raises(GrammarError, match=words):
            wait(asked, Source(kind, text))
        assert time.monotonic() - began < 30
        assert follows(wait(asked, Source("regex", "ab")), b"ab")
    finally:
        asked.close()


def test_a_trial_process_that_dies_is_replaced() -> None:
    judge = Judge(VOCABULARY)
    try:
        judge.try_out("llguidance", Source("regex", "a"))
        assert judge.process_id is not None
        import os
        import signal

        os.kill(judge.process_id, signal.SIGKILL)
        judge.try_out("llguidance", Source("regex", "b"))
    finally:
        judge.end()

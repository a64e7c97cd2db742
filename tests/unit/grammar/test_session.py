"""A request's say in its tokens: where a grammar begins, what min_new_tokens and processors forbid, and the end."""

from typing import Any

import numpy as np
import pytest

from radixlm.grammar.base import GrammarError, Source
from radixlm.grammar.llguidance import LLGuidance
from radixlm.grammar.processors import table
from radixlm.grammar.processors.base import Processor, ProcessorFacts
from radixlm.grammar.processors.table import maker, processors
from radixlm.grammar.session import Phase, Session, Spelling
from radixlm.protocol.grammar import Thinking
from tests.unit.grammar.vocabulary import OTHER_STOP, SIZE, STOP, VOCABULARY, compiled

OPEN, CLOSE = 272, 273
SPELLING = Spelling.of([*VOCABULARY.texts[:STOP], b"</s>", b"<|end|>", b"", b"<think>", b"</think>"])


def session(pattern: str | None = "ab+", thinking: Thinking | None = None, **options: Any) -> Session:
    matcher = compiled(LLGuidance, Source("regex", pattern)).matcher() if pattern is not None else None
    return Session(VOCABULARY, Phase(thinking, SPELLING), matcher, **options)


def allowed(running: Session) -> set[int] | None:
    """The tokens that may come next; None when any may."""
    mask = np.empty(VOCABULARY.words, np.int32)
    if not running.fill(mask):
        return None
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:SIZE]).tolist())


def test_a_grammar_from_the_first_token_to_the_end() -> None:
    running = session("ab?")
    assert allowed(running) == {ord("a"), 263}
    assert running.accept(ord("a")) is False
    assert allowed(running) == {ord("b"), STOP, OTHER_STOP}
    assert running.accept(ord("b")) is True  # only a stop could follow


def test_a_stop_is_the_end() -> None:
    running = session("ab*")
    assert [running.accept(token) for token in (ord("a"), OTHER_STOP)] == [False, True]


def test_what_the_grammar_does_not_allow() -> None:
    with pytest.raises(GrammarError, match="token 99"):
        session().accept(99)


@pytest.mark.parametrize("closing", [[CLOSE], list(b"</think>"), [268, *b"think>"]])
def test_thinking_is_free_until_its_closing_text(closing: list[int]) -> None:
    running = session(thinking=Thinking("</think>"))
    for token in [*b"hm </thin", *closing]:
        assert allowed(running) is None
        assert running.accept(token) is False
    assert allowed(running) == {ord("a"), 263}


def test_thinking_may_begin_where_an_answer_could() -> None:
    asked = Thinking("</think>", "<think>", inside=False)
    running = session(thinking=asked)
    assert allowed(running) == {ord("a"), 263, OPEN}
    running.accept(OPEN)
    assert allowed(running) is None
    running.accept(CLOSE)
    assert allowed(running) == {ord("a"), 263}
    at_once = session(thinking=asked)
    at_once.accept(ord("a"))
    assert allowed(at_once) == {ord("b")}


def test_stops_wait_for_min_new_tokens_as_far_as_the_grammar_lets_them() -> None:
    running = session("ab*", min_new_tokens=3, stop_ids=(STOP, OTHER_STOP))
    for token in b"abb":
        assert STOP not in (allowed(running) or set())
        running.accept(token)
    assert {STOP, OTHER_STOP} <= (allowed(running) or set())
    short = session("ab?c?", min_new_tokens=9, stop_ids=(STOP,))
    assert [short.accept(token) for token in b"abc"] == [False, False, True]
    free = session(None, min_new_tokens=1, stop_ids=(STOP,))
    assert STOP not in (allowed(free) or {STOP})
    free.accept(1)
    assert allowed(free) is None


def made(name: str, thinking: Thinking | None = None, **params: Any) -> Processor:
    return maker(name)(ProcessorFacts(params, VOCABULARY, SPELLING.ids, thinking))


def test_disallowed_tokens() -> None:
    rule = made("DisallowedTokensLogitsProcessor", token_ids=[5, 262, ord("b")])
    assert allowed(session(None, processor=rule)) == set(range(SIZE)) - {5, 262, ord("b")}
    running = session(processor=rule)
    running.accept(ord("a"))
    assert allowed(running) == {ord("b")}  # the grammar comes first where nothing would be left


@pytest.mark.parametrize("thinking", [Thinking("</think>"), Thinking("</think>", "<think>", inside=False)])
def test_a_thinking_budget_forces_the_closing_mark(thinking: Thinking) -> None:
    rule = made("Qwen3ThinkingBudgetLogitProcessor", thinking, thinking_budget=2)
    running = session(None, thinking, processor=rule)
    if not thinking.inside:
        assert allowed(running) is None
        running.accept(OPEN)
    for token in (1, 2):
        assert allowed(running) is None
        running.accept(token)
    assert allowed(running) == {ord("\n")}
    running.accept(ord("\n"))
    assert allowed(running) == {CLOSE}
    running.accept(CLOSE)
    assert allowed(running) is None


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("nobody", {}, "unknown logit processor 'nobody'; known: Disallowed"),
        ('{"callable": "80049526"}', {}, "serialized code is never run"),
        ("DisallowedTokensLogitsProcessor", {"token_ids": [SIZE]}, "token_ids"),
        ("DisallowedTokensLogitsProcessor", {}, "token_ids"),
        ("ThinkingBudgetLogitProcessor", {"thinking_budget": -1}, "thinking_budget"),
        ("ThinkingBudgetLogitProcessor", {"thinking_budget": 5}, "--reasoning-parser"),
    ],
)
def test_processors_that_cannot_be(name: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        made(name, None, **params)


def test_packages_register_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value = "Mine", "radixlm.grammar.processors.disallowed:DisallowedTokens"

    monkeypatch.setattr(table, "entry_points", lambda group: [Point()] if group == table.GROUP else [])
    processors.cache_clear()
    assert made("Mine", token_ids=[1]).narrows()
    processors.cache_clear()

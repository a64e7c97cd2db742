"""Constrained requests through scheduler, loop and runner: the same answers for every depth, chunk, page and pool."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from radixlm.engine.grammars import GrammarRoom, GrammarSettings
from radixlm.grammar.base import Vocabulary
from radixlm.grammar.service import CompileService
from radixlm.grammar.session import Session
from radixlm.loader.dummy import fill_dummy
from radixlm.loader.weights import LoadedModel
from radixlm.protocol.arrays import I32
from radixlm.protocol.grammar import GrammarSpec, Kind, ProcessorCall, Thinking
from radixlm.protocol.messages import FinishReason
from tests.helpers.engine import LocalEngine, Output, greedy
from tests.helpers.judges import NoJudge
from tests.helpers.tiny import CARD, build
from tests.unit.grammar.vocabulary import SIZE, STOP, VOCABULARY

BIG = msgspec.structs.replace(CARD, vocab_size=SIZE, context_len=256, eos_token_ids=(STOP,))
TEXTS = Vocabulary([*VOCABULARY.texts[:STOP], b"", b""], (STOP,), SIZE)
PIECES = [*VOCABULARY.texts[:STOP], b"</s>", b"<think>", b"</think>"]
PROMPT = list(b"The quick brown fox jumps over the lazy dog")
PATTERNS = ["(ab|ba){3,9}", "[0-9]{2}-[0-9]{2}", 'x"[a-z ]{5,40}"', "(yes|no)", "true(, false){0,5};"]


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedModel]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = build(BIG)
    fill_dummy(model.parameters(), 3)
    yield LoadedModel(model, 0, 0.0)
    torch.set_num_threads(threads)


def room(**settings: Any) -> GrammarRoom:
    service = CompileService(TEXTS, "llguidance", judge=NoJudge)
    return GrammarRoom(GrammarSettings(**settings), TEXTS, PIECES, service)


def engine(
    loaded: LoadedModel, run_ahead: int = 0, settings: dict[str, Any] | None = None, **flags: Any
) -> LocalEngine:
    defaults: dict[str, Any] = {"max_running_requests": 8, "max_total_tokens": 2048, "skip_server_warmup": True}
    return LocalEngine(loaded, BIG, run_ahead, room(**(settings or {})), **(defaults | flags))


def spec(pattern: str, kind: Kind = "regex", **more: Any) -> GrammarSpec:
    return GrammarSpec(kind, pattern, **more)


def text(output: Output) -> str:
    return b"".join(PIECES[token] if token < STOP else b"" for token in output.tokens).decode()


def reason(output: Output) -> FinishReason:
    assert output.finished is not None
    return output.finished.reason


def answers(running: LocalEngine, **changes: Any) -> list[Output]:
    """One constrained request for each pattern and, in between, free ones."""
    keys = []
    for number, pattern in enumerate(PATTERNS):
        params = greedy(60, **{"ignore_eos": False, **changes}, seed=number)
        keys.append(running.submit([*PROMPT, number], params, grammar=spec(pattern)))
        keys.append(running.submit([*PROMPT, number, 7], greedy(30)))
    running.finish()
    return [running.outputs[key] for key in keys]


@pytest.mark.parametrize("changes", [{}, {"temperature": 1.0, "frequency_penalty": 0.5, "logit_bias": {65: 3.0}}])
def test_the_same_answers_whatever_is_switched_on(loaded: LoadedModel, changes: dict[str, Any]) -> None:
    plain = answers(engine(loaded), **changes)
    for pattern, output in zip(PATTERNS, plain[::2], strict=True):
        assert re.fullmatch(pattern, text(output)) and reason(output) == FinishReason("stop", matched=STOP), pattern
    assert all(reason(output).type == "length" for output in plain[1::2])
    for run_ahead, flags in (
        (1, {}),
        (1, {"chunked_prefill_size": 16, "page_size": 1}),
        (0, {"chunked_prefill_size": 8, "disable_radix_cache": True}),
    ):
        again = answers(engine(loaded, run_ahead, **flags), **changes)
        assert [output.tokens for output in again] == [output.tokens for output in plain], (run_ahead, flags)


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_a_retracted_answer_goes_on_where_it_was(loaded: LoadedModel, run_ahead: int) -> None:
    pattern = "[a-c]{90}"
    asked = [[*PROMPT[:20], number] for number in range(4)]

    def run(running: LocalEngine) -> list[Output]:
        keys = [running.submit(prompt, greedy(120, ignore_eos=False), grammar=spec(pattern)) for prompt in asked]
        running.finish()
        return [running.outputs[key] for key in keys]

    calm = run(engine(loaded, run_ahead))
    tight = run(engine(loaded, run_ahead, max_total_tokens=272, page_size=1, schedule_conservativeness=0.0))
    assert sum(output.finished.retractions for output in tight if output.finished is not None) > 0
    assert [output.tokens for output in tight] == [output.tokens for output in calm]
    assert all(re.fullmatch(pattern, text(output)) for output in tight)


def test_the_end_comes_before_min_new_tokens_and_in_spite_of_ignore_eos(loaded: LoadedModel) -> None:
    running = engine(loaded, 1)
    key = running.submit(PROMPT, greedy(50, ignore_eos=True, min_new_tokens=40), grammar=spec("abab"))
    longer = running.submit(PROMPT, greedy(50, ignore_eos=False, min_new_tokens=30), grammar=spec("x{5,40}"))
    short = running.submit(PROMPT, greedy(3), grammar=spec("[ab]{9}"))
    running.finish()
    assert text(running.outputs[key]) == "abab" and reason(running.outputs[key]).type == "stop"
    assert 30 <= len(text(running.outputs[longer])) <= 40
    assert reason(running.outputs[short]) == FinishReason("length", length=3)


def test_thinking_first(loaded: LoadedModel) -> None:
    running = engine(loaded, 1)
    free = running.submit(PROMPT, greedy(12), grammar=spec("ab", thinking=Thinking("</think>")))
    running.finish()
    plain = running.generate([PROMPT], greedy(12))[0]
    assert running.outputs[free].tokens == plain.tokens  # it never stopped thinking
    bias = {STOP + 2: 100.0}  # </think>
    key = running.submit(PROMPT, greedy(20, logit_bias=bias), grammar=spec("ab?", thinking=Thinking("</think>")))
    running.finish()
    assert text(running.outputs[key]) in ("a", "ab")
    assert running.outputs[key].tokens[0] == STOP + 2


def test_a_processor_by_name(loaded: LoadedModel) -> None:
    running = engine(loaded, 1, {"processors": True})
    plain = running.generate([PROMPT], greedy(8))[0]
    call = ProcessorCall("DisallowedTokensLogitsProcessor", {"token_ids": plain.tokens})
    key = running.submit(PROMPT, greedy(8), grammar=GrammarSpec(processor=call))
    running.finish()
    assert not set(running.outputs[key].tokens) & set(plain.tokens)


@pytest.mark.parametrize(
    ("asked", "settings", "words"),
    [
        (spec("(((", field="regex"), {}, "Failed to compile regex grammar: "),
        (spec("a"), {"backend": "none"}, "--grammar-backend none"),
        (spec('{"type": "banana"}', "json_schema"), {}, "Failed to compile json_schema grammar: "),
        (GrammarSpec(processor=ProcessorCall("nobody")), {"processors": True}, "unknown logit processor 'nobody'"),
        (GrammarSpec(processor=ProcessorCall("nobody")), {}, "--enable-custom-logit-processor"),
        (spec("\u00e9\\x{110000}"), {}, "Failed to compile"),
    ],
)
def test_what_cannot_be_is_a_400_and_hurts_nobody(
    loaded: LoadedModel, asked: GrammarSpec, settings: dict[str, Any], words: str
) -> None:
    running = engine(loaded, 1, settings)
    other = running.submit(PROMPT, greedy(20))
    key = running.submit(PROMPT, greedy(20), grammar=asked)
    running.finish()
    refused = reason(running.outputs[key])
    assert refused.status_code == 400 and words in (refused.message or "") and refused.field == asked.field
    assert running.outputs[key].tokens == [] and len(running.outputs[other].tokens) == 20
    assert running.scheduler.idle


def test_a_held_request_is_counted_and_can_be_aborted(loaded: LoadedModel) -> None:
    running = engine(loaded)
    grammars = running.grammars
    ask, grammars.released = grammars.released, list  # type: ignore[method-assign]
    key = running.submit(PROMPT, greedy(20), grammar=spec("ab"))
    other = running.submit(PROMPT, greedy(5), grammar=spec("ab"))
    running.turn()
    assert running.scheduler.stats(0.0).num_grammar_queue_reqs == grammars.waiting == 2
    assert running.scheduler.resting and not running.scheduler.idle
    running.abort(key)
    running.turn()
    assert reason(running.outputs[key]).type == "abort" and grammars.waiting == 1
    grammars.released = ask  # type: ignore[method-assign]
    running.finish()
    assert text(running.outputs[other]) == "ab"


def test_the_dearest_answers_end_when_all_masks_of_a_step_take_too_long(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that charges every "x" grammar 0.1 s a mask: of four, two may stay; cheap ones always."""
    clock = [0.0]
    monkeypatch.setattr("radixlm.engine.grammars.time.thread_time", lambda: clock[0])
    fill = Session.fill

    def slow(session: Session, mask: I32) -> bool:
        bound = fill(session, mask)
        clock[0] += 0.1 if mask.view(np.uint32)[ord("x") // 32] & 1 << ord("x") % 32 else 0.001
        return bound

    monkeypatch.setattr(Session, "fill", slow)
    running = engine(loaded)
    dear = [running.submit([*PROMPT, number], greedy(20), grammar=spec("x{9}")) for number in range(4)]
    cheap = running.submit(PROMPT, greedy(20), grammar=spec("a{9}"))
    running.finish()
    assert text(running.outputs[cheap]) == "a" * 9
    ended = [reason(running.outputs[key]) for key in dear if reason(running.outputs[key]).type == "abort"]
    assert len(ended) == 2 and all("too complex" in (one.message or "") for one in ended)
    assert sum(text(running.outputs[key]) == "x" * 9 for key in dear) == 2

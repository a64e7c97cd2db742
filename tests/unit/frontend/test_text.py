"""The text pipeline: deltas joined are the text, whatever the chunks; nothing waits longer than it must."""

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.frontend.text import StopMatcher, TextPipeline, TokenTable
from radixlm.loader.tokenizer import Tokenizer
from radixlm.protocol.messages import FinishReason, TextOptions
from radixlm.scheduler.stops import StopMatcher as SchedulerStops
from tests.helpers.vocabularies import byte_level, sentencepiece

LENGTH = FinishReason("length", length=1)
BYTES = byte_level()
PIECES = sentencepiece()


def table(tokenizer: Tokenizer) -> TokenTable:
    return TokenTable(tokenizer.token_bytes(), tokenizer.special_ids)


def run(
    tokenizer: Tokenizer,
    tokens: Sequence[int],
    cuts: Sequence[int] = (),
    options: TextOptions = TextOptions(),  # noqa: B008 - frozen
    reason: FinishReason = LENGTH,
) -> list[str]:
    """The deltas when `tokens` come in chunks that end at `cuts`."""
    pipeline = TextPipeline(table(tokenizer), options)
    edges = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    chunks = [tokens[a:b] for a, b in itertools.pairwise(edges)]
    deltas = [pipeline.feed(chunk) for chunk in chunks[:-1]]
    return [*deltas, pipeline.feed(chunks[-1], reason)]


ids = st.lists(st.integers(0, BYTES.vocab_size + 3), max_size=40)
cuts = st.lists(st.integers(0, 40), max_size=12)


@given(ids, cuts, st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_tokens_in_any_chunks_give_the_decoded_text(tokens: list[int], at: list[int], skip: bool) -> None:
    options = TextOptions(skip_special_tokens=skip)
    assert "".join(run(BYTES, tokens, at, options)) == BYTES.decode(tokens, skip)


@given(st.text(max_size=30), st.text(max_size=30), cuts, st.booleans())
@settings(max_examples=300, deadline=None)
def test_sentencepiece_text_continues_its_prompt(before: str, text: str, at: list[int], skip: bool) -> None:
    """What is generated is the difference between the text with it and the text without: its first space counts."""
    prompt = PIECES.encode("x" + before)
    tokens = PIECES.encode(text, add_special_tokens=False)
    options = TextOptions(skip_special_tokens=skip)
    whole = PIECES.decode([*prompt, *tokens], skip)
    assert PIECES.decode(prompt, skip) + "".join(run(PIECES, tokens, at, options)) == whole


def test_a_first_piece_keeps_its_space() -> None:
    tokens = PIECES.encode("the dog", add_special_tokens=False)
    assert "".join(run(PIECES, tokens)) == " the dog"
    assert PIECES.decode(tokens) == "the dog"


stops = st.lists(st.text(alphabet="ab-", min_size=1, max_size=4), min_size=1, max_size=4)


@given(st.text(alphabet="ab-é안", max_size=40), stops, cuts, st.booleans())
@settings(max_examples=400, deadline=None)
def test_stop_strings_are_cut_where_the_scheduler_stops(text: str, stop: list[str], at: list[int], keep: bool) -> None:
    tokens = BYTES.encode(text, add_special_tokens=False)
    matcher = SchedulerStops(stop, (), BYTES.token_bytes())
    matched = None
    for count, token in enumerate(tokens, 1):
        matched = matcher.feed(token)
        if matched is not None:
            tokens = tokens[:count]
            break
    reason = LENGTH if matched is None else FinishReason("stop", matched)
    options = TextOptions(stop=tuple(stop), no_stop_trim=keep)
    expected = BYTES.decode(tokens)
    if matched is not None:
        expected = expected[: expected.index(matched) + (len(matched) if keep else 0)]
    assert "".join(run(BYTES, tokens, at, options, reason)) == expected


@given(st.text(alphabet="ab-", max_size=30), stops)
@settings(max_examples=300, deadline=None)
def test_only_a_possible_beginning_of_a_stop_waits(text: str, stop: list[str]) -> None:
    pipeline = TextPipeline(table(BYTES), TextOptions(stop=tuple(stop)))
    given_out = ""
    for at, token in enumerate(BYTES.encode(text, add_special_tokens=False)):
        given_out += pipeline.feed([token])
        so_far = BYTES.decode(BYTES.encode(text, add_special_tokens=False)[: at + 1])
        prefixes = {s[:length] for s in stop for length in range(1, len(s))}
        waits = max((len(prefix) for prefix in prefixes if so_far.endswith(prefix)), default=0)
        assert given_out == so_far[: len(so_far) - waits]


def test_a_stop_across_chunks_neither_leaks_nor_doubles() -> None:
    tokens = [t for c in "alpha-be" for t in BYTES.encode(c, add_special_tokens=False)]
    options = TextOptions(stop=("a-be",))
    deltas = run(BYTES, tokens, range(1, 20), options, FinishReason("stop", "a-be"))
    assert "".join(deltas) == "alph"
    assert deltas[:4] == ["", "al", "p", "h"]  # the first "a" waits for one more token


def test_a_stop_the_scheduler_passed_over_is_text() -> None:
    tokens = [t for c in "xENDyEND" for t in BYTES.encode(c, add_special_tokens=False)]
    options = TextOptions(stop=("END",))
    for at in ([], range(1, 20)):
        assert "".join(run(BYTES, tokens, at, options, FinishReason("stop", "END"))) == "xENDy"


@pytest.mark.parametrize("keep", [False, True])
def test_a_matched_stop_token_is_dropped_unless_kept(keep: bool) -> None:
    eos = BYTES.eos_token_ids[0]
    comma = BYTES.encode(",", add_special_tokens=False)[0]
    options = TextOptions(skip_special_tokens=False, no_stop_trim=keep)
    hi = BYTES.encode("hi", add_special_tokens=False)
    assert "".join(run(BYTES, [*hi, eos], (), options, FinishReason("stop", eos))) == "hi" + ("</s>" if keep else "")
    assert "".join(run(BYTES, [*hi, comma], (), options, FinishReason("stop", comma))) == "hi" + ("," if keep else "")


def test_a_matched_pattern_stays() -> None:
    tokens = BYTES.encode("abc123", add_special_tokens=False)
    assert "".join(run(BYTES, tokens, (), reason=FinishReason("stop", r"\d+"))) == "abc123"


def test_characters_come_whole_and_at_once() -> None:
    text = "🙂 안녕 🇰🇷 žluť"
    pipeline = TextPipeline(TokenTable([bytes((b,)) for b in range(256)], frozenset()), TextOptions())
    deltas = [pipeline.feed([byte]) for byte in text.encode()]
    assert [delta for delta in deltas if delta] == list(text)
    assert pipeline.feed([], LENGTH) == ""


def test_half_a_character_at_the_end_is_one_replacement() -> None:
    pipeline = TextPipeline(TokenTable([bytes((b,)) for b in range(256)], frozenset()), TextOptions())
    assert pipeline.feed(list("é안".encode()[:4])) == "é"
    assert pipeline.feed([], LENGTH) == "\ufffd"


@pytest.mark.parametrize("byte", [0xFF, 0x80, 0xC3])
def test_bytes_that_are_no_text_come_at_once_and_in_linear_time(byte: int) -> None:
    pipeline = TextPipeline(TokenTable([bytes((b,)) for b in range(256)], frozenset()), TextOptions(stop=("x" * 50,)))
    seconds = []
    text = ""
    for _ in range(2):
        begun = time.perf_counter()
        for _ in range(20_000):
            text += pipeline.feed([byte])
        seconds.append(time.perf_counter() - begun)
    assert len(text) >= 39_999 and set(text) == {"\ufffd"}
    assert seconds[1] < 5 * seconds[0]


def test_hostile_stops_cost_no_more_than_the_text() -> None:
    matcher = StopMatcher(["a" * 1000 + "b", "a" * 999 + "c"])
    begun = time.perf_counter()
    state = matcher.advance(0, "a" * 100_000)
    assert matcher.held(state) == 1000
    assert time.perf_counter() - begun < 2.0

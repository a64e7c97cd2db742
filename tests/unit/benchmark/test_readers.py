"""Answers read from raw bytes cut anywhere: times, counts, text, and every way they can go wrong."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlm.benchmark.outcome import Outcome
from radixlm.benchmark.readers import AnswerReceiver, NativeReader, OpenAiReader, Reader

DONE = b"data: [DONE]\n\n"
WORDS = st.text(max_size=6)


def native_chunk(text: str, ids: list[int], total: int, last: bool, **meta: Any) -> bytes:
    reason = {"type": "length", "length": total} if last else None
    info = {"id": "r", "finish_reason": reason, "prompt_tokens": 5, "completion_tokens": total, "cached_tokens": 3}
    return sse({"text": text, "output_ids": ids, "meta_info": {**info, **meta}})


def sse(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def read(reader: Reader, pieces: list[tuple[bytes, float]], streamed: bool = True, status: int = 200) -> Outcome:
    receiver = AnswerReceiver(reader, streamed)
    receiver.on_status(status)
    for data, now in pieces:
        receiver.on_body(data, now)
    outcome = Outcome(0, output_tokens=77)
    receiver.finish(outcome)
    return outcome


@given(
    st.lists(st.tuples(WORDS, st.integers(1, 3)), min_size=1, max_size=8),
    st.booleans(),
    st.lists(st.integers(1, 60), max_size=20),
)
def test_native_streams(steps: list[tuple[str, int]], incremental: bool, cuts: list[int]) -> None:
    """Each event's time is that of the piece completing it; text that looks like a key changes nothing."""
    steps = [(text + '"completion_tokens":9,' * (i == 1), n) for i, (text, n) in enumerate(steps)]
    chunks, text, total = [], "", 0
    for i, (word, tokens) in enumerate(steps):
        text, total = text + word, total + tokens
        shown = (word, [1] * tokens) if incremental else (text, [1] * total)
        chunks.append(native_chunk(shown[0], shown[1], total, i == len(steps) - 1))
    stream, pieces, complete_at = b"".join(chunks) + DONE, [], 0.0
    sizes = iter(cuts)
    at = 0
    while at < len(stream):
        end = at + next(sizes, len(stream))
        complete_at += 1.0
        pieces.append((stream[at:end], complete_at))
        at = end
    ends = [sum(len(c) for c in chunks[: i + 1]) for i in range(len(chunks))]
    arrived = []
    for end in ends:
        seen = 0
        for data, now in pieces:
            seen += len(data)
            if seen >= end:
                arrived.append(now)
                break
    outcome = read(NativeReader(), pieces)
    assert outcome.error is None
    assert outcome.text == text and outcome.output_tokens == total
    assert sum(outcome.event_tokens) == total
    first_text = next((i for i, (word, _) in enumerate(steps) if word), 0)
    assert outcome.event_s == arrived[first_text:]
    assert outcome.event_tokens[1:] == [n for _, n in steps[first_text + 1 :]]
    assert (outcome.server_prompt_tokens, outcome.cached_tokens) == (5, 3)
    assert outcome.end_s == pieces[-1][1]


def test_native_later_chunks_are_not_decoded() -> None:
    """The third chunk is not even JSON, yet its count is found: the cost of a chunk does not grow with its text."""
    good = [native_chunk("a" * i, [1] * i, i, False) for i in (1, 2)]
    odd = b'data: {"text": <not decoded> "meta_info":{"completion_tokens": 3, "x":1}}\n\n'
    last = native_chunk("aaaa", [1] * 4, 4, True)
    pieces = [(data, float(i)) for i, data in enumerate([*good, odd, last, DONE])]
    outcome = read(NativeReader(), pieces)
    assert outcome.event_s == [0.0, 1.0, 2.0, 3.0] and outcome.output_tokens == 4 and outcome.error is None


def test_native_without_any_text_still_has_times() -> None:
    pieces = [(native_chunk("", [1] * i, i, i == 3), float(i)) for i in (1, 2, 3)]
    outcome = read(NativeReader(), [*pieces, (DONE, 4.0)])
    assert outcome.event_s == [1.0, 2.0, 3.0] and outcome.event_tokens == [1, 1, 1]


def openai_events(chat: bool) -> list[bytes]:
    def part(text: str) -> dict[str, Any]:
        return {"delta": {"content": text}} if chat else {"text": text}

    opening = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}] if chat else []
    words = [{"choices": [{"index": 0, **part(w), "finish_reason": None}], "usage": None} for w in ("x", "y", "z")]
    end = {"choices": [{"index": 0, **part(""), "finish_reason": "length"}]}
    return [sse(event) for event in [*opening, *words, end]]


@pytest.mark.parametrize("chat", [True, False])
def test_openai_streams(chat: bool) -> None:
    events = openai_events(chat)
    usage = {"prompt_tokens": 6, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}
    pieces = [(e, float(i)) for i, e in enumerate([*events, sse({"choices": [], "usage": usage}), DONE])]
    outcome = read(OpenAiReader(), pieces)
    first = 1.0 if chat else 0.0
    assert outcome.event_s == [first, first + 1, first + 2] and outcome.text == "xyz" and outcome.error is None
    assert (outcome.output_tokens, outcome.output_assumed) == (5, False)
    assert (outcome.server_prompt_tokens, outcome.cached_tokens) == (6, 2)
    assert outcome.end_s == len(pieces) - 1
    without = read(OpenAiReader(), [(e, float(i)) for i, e in enumerate([*events, DONE])])
    assert (without.output_tokens, without.output_assumed) == (77, True)


def test_whole_answers() -> None:
    native = read(NativeReader(), [(native_chunk("abc", [1, 2], 2, True)[6:-2], 3.0)], streamed=False)
    assert (native.text, native.output_tokens, native.error, native.event_s) == ("abc", 2, None, [3.0])
    body = json.dumps({"choices": [{"message": {"content": "hi"}}], "usage": {"completion_tokens": 4}}).encode()
    chat = read(OpenAiReader(), [(body[:9], 1.0), (body[9:], 2.0)], streamed=False)
    assert (chat.text, chat.output_tokens, chat.error, chat.end_s) == ("hi", 4, None, 2.0)


@pytest.mark.parametrize(
    ("reader", "data", "error"),
    [
        (NativeReader, native_chunk("a", [1], 1, False), "without [DONE]"),
        (NativeReader, DONE, "empty"),
        (NativeReader, sse({"error": {"message": "pool\nfull", "code": 400}}) + DONE, "server error: pool full"),
        (NativeReader, native_chunk("a", [1], 1, False, finish_reason={"type": "abort"}) + DONE, "aborted"),
        (NativeReader, b"data: {oops\n\n" + DONE, "not understood"),
        (OpenAiReader, sse({"choices": [{"text": "a"}]}), "without [DONE]"),
        (OpenAiReader, DONE, "empty"),
        (OpenAiReader, sse({"error": {"message": "bad", "code": 400}}) + DONE, "server error: bad"),
        (OpenAiReader, sse({"choices": [{"text": "", "finish_reason": "abort"}]}) + DONE, "aborted"),
        (OpenAiReader, sse({"choices": [{"text": 5}]}) + DONE, "not understood"),
    ],
)
def test_failed_streams(reader: type[NativeReader | OpenAiReader], data: bytes, error: str) -> None:
    outcome = read(reader(), [(data, 1.0)])
    assert outcome.error is not None and error in outcome.error


def test_an_error_status_keeps_the_servers_words() -> None:
    outcome = read(NativeReader(), [(b'{"error":\n "no"}', 1.0)], status=503)
    assert outcome.error == 'HTTP 503: {"error": "no"}'

"""Event streams cut anywhere give the same events."""

import json
import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from radixlm.benchmark.sse import SseParser

PAYLOADS = st.lists(
    st.one_of(
        st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])),
        st.dictionaries(st.sampled_from(["text", "a"]), st.text(), min_size=1).map(json.dumps),
    ).filter(lambda text: not text.startswith(" ")),
    max_size=8,
)


def cut(data: bytes, borders: list[int]) -> list[bytes]:
    places = sorted({min(b, len(data)) for b in borders} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


@given(PAYLOADS, st.lists(st.integers(0, 400)), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_any_cut_gives_the_same_events(payloads: list[str], borders: list[int], newline: str, closed: bool) -> None:
    text = "".join(f"data: {payload}{newline}{newline}" for payload in payloads)
    if not closed:
        text = text.removesuffix(newline)
    parser = SseParser()
    events = [event for piece in cut(text.encode(), borders) for event in parser.feed(piece)]
    if closed and newline != "\r":  # a CR at the very end may still become a CRLF
        assert len(events) == len(payloads), "an event was not given when it was complete"
    events += parser.finish()
    assert [event.decode() for event in events] == payloads


def test_comments_other_fields_and_joined_lines() -> None:
    parser = SseParser()
    fed = parser.feed(b": ping\n\nevent: x\nid: 3\ndata:one\ndata: two\n\nretry: 5\n\ndata\n\n")
    assert fed == [b"one\ntwo", b""]
    assert parser.finish() == []


def test_an_event_in_small_pieces_costs_linear_time() -> None:
    def seconds(size: int) -> float:
        data = b"data: " + b"x" * size + b"\n\n"
        parser = SseParser()
        start = time.process_time()
        events = [event for at in range(0, len(data), 64) for event in parser.feed(data[at : at + 64])]
        assert [len(event) for event in events] == [size]
        return time.process_time() - start

    seconds(100_000)
    assert seconds(3_200_000) < 64 * max(seconds(100_000), 0.002)  # quadratic would be 1024 times

"""Sessions: which prompt a turn gets, what a replacement forgets, what is refused."""

import numpy as np
import pytest

from radixlm.base.errors import RequestError
from radixlm.server.sessions import SessionParams, Sessions

BOS = 1


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def turn(sessions: Sessions, name: str, tokens: list[int], output: list[int] | None, **params: object) -> list[int]:
    prompt, _ = sessions.begin(SessionParams(id="s", **params), name, tokens, BOS)  # type: ignore[arg-type]
    if output is not None:
        sessions.finish("s", name, output)
    return [int(token) for token in prompt]


@pytest.fixture
def sessions() -> Sessions:
    opened = Sessions()
    opened.open("s", False, None)
    assert turn(opened, "a", [BOS, 5, 6], [7, 8]) == [BOS, 5, 6]
    return opened


def test_a_turn_goes_on_from_the_named_one(sessions: Sessions) -> None:
    assert turn(sessions, "b", [BOS, 9], [10], rid="a") == [BOS, 5, 6, 7, 8, 9]
    assert turn(sessions, "c", [11], [12], rid="b") == [BOS, 5, 6, 7, 8, 9, 10, 11]
    assert turn(sessions, "fresh", [BOS, 3], []) == [BOS, 3]


def test_offset_and_dropped_output(sessions: Sessions) -> None:
    assert turn(sessions, "b", [9], [], rid="a", offset=4) == [BOS, 5, 6, 7, 9]
    assert turn(sessions, "c", [9], [], rid="a", drop_previous_output=True) == [BOS, 5, 6, 9]
    with pytest.raises(RequestError, match=r"5 tokens"):
        turn(sessions, "d", [9], [], rid="a", offset=6)


def test_replace_forgets_what_came_after(sessions: Sessions) -> None:
    turn(sessions, "b", [9], [10], rid="a")
    turn(sessions, "c", [11], None, rid="b")
    prompt, stopped = sessions.begin(SessionParams(id="s", rid="a", replace=True), "d", [4], BOS)
    assert stopped == ["c"]
    assert np.array_equal(prompt, [BOS, 5, 6, 7, 8, 4])
    with pytest.raises(RequestError, match="no turn 'b'"):
        turn(sessions, "e", [1], [], rid="b")


def test_a_turn_that_failed_was_never_there(sessions: Sessions) -> None:
    turn(sessions, "b", [9], None, rid="a")
    with pytest.raises(RequestError, match="has not ended"):
        turn(sessions, "c", [9], None, rid="b")
    sessions.finish("s", "b", None)
    with pytest.raises(RequestError, match="no turn"):
        turn(sessions, "c", [9], None, rid="b")


def test_unknown_and_closed_sessions(sessions: Sessions) -> None:
    with pytest.raises(RequestError, match="session nobody does not exist"):
        sessions.begin(SessionParams(id="nobody"), "x", [1], BOS)
    turn(sessions, "b", [9], None, rid="a")
    assert sessions.close("s") == ["b"]
    assert sessions.close("s") == []
    with pytest.raises(RequestError, match="does not exist"):
        turn(sessions, "c", [9], None)


def test_streaming_sessions_only_append() -> None:
    with pytest.raises(RequestError, match="--enable-streaming-session"):
        Sessions().open("s", True, None)
    sessions = Sessions(streaming=True)
    sessions.open("s", True, None)
    assert turn(sessions, "a", [BOS, 5], [6]) == [BOS, 5]
    assert turn(sessions, "b", [BOS, 7], None) == [BOS, 5, 6, 7]
    with pytest.raises(RequestError, match="has not ended"):
        turn(sessions, "c", [8], None)
    sessions.finish("s", "b", None)
    assert turn(sessions, "c", [8], [9]) == [BOS, 5, 6, 8]
    with pytest.raises(RequestError, match="only appends"):
        turn(sessions, "d", [8], [9], offset=2)


def test_a_session_closes_after_its_timeout_unless_it_works() -> None:
    clock = Clock()
    sessions = Sessions(now=clock)
    sessions.open("s", False, 10.0)
    turn(sessions, "a", [5], None)
    clock.now_s = 20.0
    sessions.finish("s", "a", [6])
    clock.now_s = 29.0
    assert turn(sessions, "b", [7], [8], rid="a") == [5, 6, 7]
    clock.now_s = 40.0
    with pytest.raises(RequestError, match="does not exist"):
        turn(sessions, "c", [7], [8])

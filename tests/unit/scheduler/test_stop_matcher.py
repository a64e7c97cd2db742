"""Stop strings over tokens: borders inside tokens and characters, order, and nothing found that is not there."""

from hypothesis import given
from hypothesis import strategies as st

from radixlm.scheduler.stops import StopMatcher


def feed(stop: list[str], pieces: list[bytes], regex: list[str] | None = None) -> tuple[int, str] | None:
    """(how many pieces were needed, what matched)."""
    matcher = StopMatcher(stop, regex or [], pieces)
    for token in range(len(pieces)):
        matched = matcher.feed(token)
        if matched is not None:
            return token + 1, matched
    return None


def test_a_stop_string_may_span_tokens() -> None:
    assert feed(["a-be"], [b"alph", b"a", b"-", b"beta", b"x"]) == (4, "a-be")


def test_a_stop_string_may_lie_inside_a_token() -> None:
    assert feed(["-"], [b"alpha-beta"]) == (1, "-")


def test_a_stop_string_may_begin_inside_a_split_character() -> None:
    raw = "x🦙y".encode()
    assert feed(["🦙y"], [raw[:2], raw[2:4], raw[4:]]) == (3, "🦙y")
    assert feed([], [raw[:2], raw[2:4], raw[4:]], ["🦙."]) == (3, "🦙.")


def test_the_first_in_the_list_wins_and_strings_beat_patterns() -> None:
    assert feed(["b", "ab"], [b"ab"]) == (1, "b")
    assert feed(["ab", "b"], [b"ab"]) == (1, "ab")
    assert feed(["b"], [b"ab"], ["a"]) == (1, "b")
    assert feed([], [b"ab"], ["c", "[ab]"]) == (1, "[ab]")


def test_empty_stops_and_unknown_tokens_are_harmless() -> None:
    matcher = StopMatcher(["", "ab"], [], [b"a"])
    assert [matcher.feed(0), matcher.feed(99)] == [None, None]


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(st.binary(max_size=3), max_size=12))
def test_equals_a_search_in_everything_so_far(stop: list[str], pieces: list[bytes]) -> None:
    pieces = [bytes(97 + value % 2 for value in piece) for piece in pieces]
    expected = None
    for count in range(1, len(pieces) + 1):
        found = [s for s in stop if s.encode() in b"".join(pieces[:count])]
        if found:
            expected = (count, found[0])
            break
    assert feed(stop, pieces) == expected

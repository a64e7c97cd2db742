r"""Stop patterns in linear time: a Thompson automaton fed one character at a time. Knows neither tokens nor requests.

Python's `re` backtracks, so one hostile pattern could hold up every request; this takes at most `MAX_STATES` moves per
character, and remembers no text. Accepted is the regular part of Python's syntax: literals, classes, escapes, groups,
alternatives, repeats, ^ $ \A \Z \b \B, and (?i), (?m), (?s) at the start. Look-around, back-references, atomic groups,
possessive repeats and scoped flags are refused. ^ is the start of the output, $ its end so far.
Ken Thompson, "Regular expression search algorithm", CACM 11(6), 1968.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

MAX_STATES = 2000


class UnsupportedPattern(ValueError):
    """A pattern that is not valid, not regular, or too large; the text says which."""


@dataclass(slots=True)
class _State:
    """Reads a character if `test` is set, else moves freely to `out`, where `holds(before, after)` allows it."""

    test: Callable[[str], object] | None
    holds: Callable[[str, str], bool] | None
    out: list[int]


_ACCEPT = 0


class Pattern:
    """A compiled pattern: states, and the one to start in. Shared by any number of searches."""

    def __init__(self, source: str) -> None:
        self.states = [_State(None, None, [])]
        try:
            re.compile(source)
            self.start = _Parser(source, self.states).parse()
        except (re.error, OverflowError) as error:
            raise UnsupportedPattern(f"stop_regex {source!r} is not valid: {error}") from None
        except RecursionError:
            raise UnsupportedPattern("stop_regex is nested too deeply") from None


class Search:
    """Looks for one pattern in text that arrives in pieces."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._current: set[int] = set()
        self._before = ""

    def feed(self, text: str) -> bool:
        """Whether a match ends in `text`, or at its end; `text` continues what was fed before."""
        states = self._pattern.states
        for character in text:
            reached = self._closure(character)
            if _ACCEPT in reached:
                return True
            self._current = {
                target
                for index in reached
                if (test := states[index].test) is not None and test(character)
                for target in states[index].out
            }
            self._before = character
        return _ACCEPT in self._closure("")

    def _closure(self, after: str) -> set[int]:
        """Every state reachable without reading, between the character before and `after` ("" for none)."""
        states = self._pattern.states
        reached: set[int] = set()
        stack = [*self._current, self._pattern.start]
        while stack:
            index = stack.pop()
            if index in reached:
                continue
            reached.add(index)
            state = states[index]
            if state.test is None and (state.holds is None or state.holds(self._before, after)):
                stack.extend(state.out)
        return reached


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


class _Parser:
    """Recursive descent over a pattern that `re` has accepted. Parts are built back to front, each on its successor."""

    def __init__(self, source: str, states: list[_State]) -> None:
        self._states = states
        self._flags = 0
        if found := re.match(r"\(\?([ims]+)\)", source):
            self._flags = sum({"i": re.I, "m": re.M, "s": re.S}[letter] for letter in set(found[1]))
        self._text = source[found.end() :] if found else source
        self._at = 0
        self._repeats = 0

    def parse(self) -> int:
        return self._alternatives()(_ACCEPT)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, count: int = 1) -> str:
        self._at += count
        return self._text[self._at - count : self._at]

    def _add(self, state: _State) -> int:
        if len(self._states) >= MAX_STATES:
            raise UnsupportedPattern(f"stop_regex is too large: more than {MAX_STATES} states")
        self._states.append(state)
        return len(self._states) - 1

    def _alternatives(self) -> "_Part":
        branches = [self._sequence()]
        while self._peek() == "|":
            self._take()
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        return lambda after: self._add(_State(None, None, [branch(after) for branch in branches]))

    def _sequence(self) -> "_Part":
        parts: list[_Part] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeat(self._atom()))

        def build(after: int) -> int:
            for part in reversed(parts):
                after = part(after)
            return after

        return build

    def _repeat(self, part: "_Part") -> "_Part":
        counts = re.compile(r"\*|\+|\?|\{(\d*),(\d*)\}|\{(\d+)\}").match(self._text, self._at)
        if counts is None or counts[0] == "{,}":
            return part
        self._take(len(counts[0]))
        if self._peek() == "+":
            raise UnsupportedPattern("stop_regex: possessive repeats are not supported")
        if self._peek() == "?":
            self._take()
        if counts[0][0] == "{":
            low = int(counts[3] or counts[1] or 0)
            high = int(counts[3]) if counts[3] else int(counts[2]) if counts[2] else None
        else:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[counts[0]]
        return lambda after: self._unroll(part, low, high, after)

    def _unroll(self, part: "_Part", low: int, high: int | None, after: int) -> int:
        if high is None:
            loop = self._add(_State(None, None, [after]))
            self._states[loop].out.append(part(loop))
            after = loop
        else:
            end = after
            for _ in range(high - low):
                after = self._add(_State(None, None, [end, self._once_more(part, after)]))
        for _ in range(low):
            after = self._once_more(part, after)
        return after

    def _once_more(self, part: "_Part", after: int) -> int:
        """One copy of a repeated part. Copies are counted too: nested repeats of nothing add no states."""
        self._repeats += 1
        if self._repeats > MAX_STATES:
            raise UnsupportedPattern(f"stop_regex is too large: more than {MAX_STATES} repeats")
        return part(after)

    def _atom(self) -> "_Part":
        character = self._peek()
        if character == "(":
            return self._group()
        if character == "\\":
            return self._escape()
        if character == "[":
            return self._reads(self._take(self._class_length()))
        self._take()
        if character == "^":
            multiline = self._flags & re.M
            return self._holds(lambda before, _: not before or bool(multiline and before == "\n"))
        if character == "$":
            multiline = self._flags & re.M
            return self._holds(lambda _, after: not after or bool(multiline and after == "\n"))
        return self._reads(character if character == "." else re.escape(character))

    def _group(self) -> "_Part":
        opening = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))").match(self._text, self._at)
        if opening is None:
            raise UnsupportedPattern("stop_regex: look-around, back-references and scoped flags are not supported")
        self._take(len(opening[0]))
        inner = self._alternatives()
        self._take()
        return inner

    def _escape(self) -> "_Part":
        found = re.compile(
            r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|0[0-7]{0,2}|[0-3][0-7]{2}|.)", re.S
        ).match(self._text, self._at)
        assert found is not None  # `re` has accepted the pattern, so a backslash is followed by something
        escape = self._take(len(found[0]))
        if escape == r"\A":
            return self._holds(lambda before, _: not before)
        if escape in (r"\Z", r"\z"):
            return self._holds(lambda _, after: not after)
        if escape in (r"\b", r"\B"):
            wanted = escape == r"\b"
            return self._holds(lambda before, after: (_is_word(before) != _is_word(after)) == wanted)
        if len(escape) == 2 and escape[1] in "123456789":
            raise UnsupportedPattern("stop_regex: back-references are not supported")
        return self._reads(escape)

    def _class_length(self) -> int:
        found = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.S).match(self._text, self._at)
        assert found is not None
        return len(found[0])

    def _reads(self, source: str) -> "_Part":
        """One character, matched by `re` against `source`, so classes mean what they mean there."""
        test = re.compile(source, self._flags).fullmatch
        return lambda after: self._add(_State(test, None, [after]))

    def _holds(self, test: Callable[[str, str], bool]) -> "_Part":
        return lambda after: self._add(_State(None, test, [after]))


_Part = Callable[[int], int]  # given the state that follows, adds its own states and returns the first of them

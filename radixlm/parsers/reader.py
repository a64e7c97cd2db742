"""Text that arrives in pieces, read by generators: literal tags, spaces, JSON. Knows no format and no event.

A format is written as one generator that asks for what comes next; it waits inside `yield` until there is more text, so
the place where it waits is the parser's state, and how the text was cut into pieces cannot matter. Every character is
looked at a bounded number of times: what is certain is handed on at once, and only the longest suffix that can still
become a tag stays behind.
"""

import json
import re
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Read: TypeAlias = Generator[None, None, T]
Sink: TypeAlias = Callable[[str], None]

_SPACE = re.compile(r"\s*")
_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]|[^\s0-9A-Za-z+\-.,:]')
_SCALAR = re.compile(r"[0-9A-Za-z+\-.]*")


class EndOfText(Exception):
    """The text has ended where more was expected: a truncated answer, or simply the last word."""


class Malformed(Exception):
    """What comes next is not what the format says."""


def ignore(text: str) -> None:
    """A sink for text that says nothing."""


class Tags:
    """Literal tags to look for. None may complete inside another, except at its very end."""

    def __init__(self, *tags: str) -> None:
        for one in tags:
            for other in tags:
                at = other.find(one)
                assert one == other or at < 0 or at + len(one) == len(other), f"{one!r} inside {other!r}"
        self._pattern = re.compile("|".join(map(re.escape, sorted(tags, key=len, reverse=True))) or r"(?!)")
        self._prefixes = frozenset(tag[:size] for tag in tags for size in range(1, len(tag)))
        self._heads = frozenset(tag[0] for tag in tags)
        self._most = max((len(tag) - 1 for tag in tags), default=0)

    def search(self, text: str, start: int) -> re.Match[str] | None:
        """The first complete tag from `start` on."""
        return self._pattern.search(text, start)

    def held(self, text: str, start: int) -> int:
        """How many of the last characters, from `start` on, may be the beginning of a tag."""
        size = len(text)
        for at in range(max(start, size - self._most), size):
            if text[at] in self._heads and text[at:] in self._prefixes:
                return size - at
        return 0


class Reader:
    """The text so far that is not read yet. `position` counts the characters read."""

    def __init__(self) -> None:
        self.position = 0
        self._text = ""
        self._at = 0
        self._ended = False
        self._record: list[str] | None = None

    # ---- what the machine does

    def push(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """No more text will come."""
        self._ended = True

    # ---- a memory of text that may turn out to be plain

    def record(self, text: str = "") -> None:
        """From here on remember what is read, after `text`."""
        self._record = [text]

    def forget(self) -> str:
        """Stop remembering; what was remembered."""
        text = "".join(self._record or ())
        self._record = None
        return text

    def leave(self) -> str:
        """At the end of the text: all that was remembered or not read."""
        text = self.take(len(self._text) - self._at)
        return text if self._record is None else self.forget()

    # ---- what formats ask for; each raises EndOfText when the text ends before it is complete

    def take(self, size: int) -> str:
        """The next `size` characters, which must be there."""
        text = self._text[self._at : self._at + size]
        self._at += size
        self.position += size
        if self._record is not None:
            self._record.append(text)
        return text

    def more(self) -> Read[None]:
        """Wait for more text."""
        if self._ended:
            raise EndOfText
        yield

    def peek(self) -> Read[str]:
        """The next character, which stays."""
        while self._at == len(self._text):
            yield from self.more()
        return self._text[self._at]

    def until(self, tags: Tags, say: Sink) -> Read[str]:
        """Read up to and over the first complete tag, and return it; the text before it goes to `say` piece by piece.

        When the text ends first, all of it has gone to `say`, a beginning of a tag too.
        """
        while True:
            found = tags.search(self._text, self._at)
            if found is not None:
                if found.start() > self._at:
                    say(self.take(found.start() - self._at))
                return self.take(len(found.group()))
            held = 0 if self._ended else tags.held(self._text, self._at)
            free = len(self._text) - self._at - held
            if free:
                say(self.take(free))
            yield from self.more()

    def text_until(self, tags: Tags) -> Read[tuple[str, str]]:
        """The text before the first complete tag, and the tag."""
        parts: list[str] = []
        tag = yield from self.until(tags, parts.append)
        return "".join(parts), tag

    def rest(self, say: Sink) -> Read[None]:
        """Everything that still comes; ends with EndOfText."""
        yield from self.until(_NOTHING, say)

    def match(self, pattern: re.Pattern[str]) -> Read[str]:
        """The longest text that `pattern` (a repeated character class) matches here; it may be empty.

        Known to be whole only once another character is there.
        """
        parts: list[str] = []
        while True:
            found = pattern.match(self._text, self._at)
            assert found is not None
            if found.end() > self._at:
                parts.append(self.take(found.end() - self._at))
            if self._at < len(self._text):
                return "".join(parts)
            yield from self.more()

    def space(self) -> Read[str]:
        """Skip white space."""
        return (yield from self.match(_SPACE))

    def optional(self, literal: str) -> Read[bool]:
        """Read `literal` if it comes next; otherwise nothing is read."""
        while not self._text.startswith(literal, self._at):
            if not literal.startswith(self._text[self._at : self._at + len(literal)]):
                return False
            yield from self.more()
        self.take(len(literal))
        return True

    def expect(self, literal: str) -> Read[None]:
        """Read `literal`; Malformed when something else comes."""
        if not (yield from self.optional(literal)):
            raise Malformed

    def json_value(self, say: Sink) -> Read[None]:
        """Read one JSON value, from its first to its last character; its text goes to `say` as it comes.

        Brackets are counted and strings skipped, no more: what the value's text means is its reader's business.
        Malformed at a character that no JSON has outside a string, after what comes before it has gone to `say`.
        """
        scan = _JsonScan((yield from self.peek()))
        while True:
            end = scan.advance(self._text, self._at)
            if end > self._at:
                say(self.take(end - self._at))
            if scan.state == "bad":
                raise Malformed
            if scan.state == "done":
                return
            yield from self.more()

    def json_string(self) -> Read[str]:
        """Read a JSON string; what it stands for."""
        if (yield from self.peek()) != '"':
            raise Malformed
        parts: list[str] = []
        yield from self.json_value(parts.append)
        try:
            return str(json.loads("".join(parts), strict=False))
        except ValueError:
            raise Malformed from None


_NOTHING = Tags()


class _JsonScan:
    """Where one JSON value ends, told piece by piece."""

    def __init__(self, first: str) -> None:
        self.state = "more"
        self._scalar = first not in '{["'
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._empty = True

    def advance(self, text: str, at: int) -> int:
        """Look at `text` from `at` on; where the value ends in it, or how far it has been looked at."""
        if self._scalar:
            return self._advance_scalar(text, at)
        while at < len(text) and self.state == "more":
            at = self._in_string_from(text, at) if self._in_string else self._outside_from(text, at)
        return at

    def _advance_scalar(self, text: str, at: int) -> int:
        found = _SCALAR.match(text, at)
        assert found is not None
        self._empty = self._empty and found.end() == at
        if found.end() < len(text):
            self.state = "bad" if self._empty else "done"
        return found.end()

    def _in_string_from(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.search(text, at)
        if found is None:
            return len(text)
        if found.group() == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self._close_if_outermost()
        return found.end()

    def _outside_from(self, text: str, at: int) -> int:
        found = _OUTSIDE.search(text, at)
        if found is None:
            return len(text)
        character = found.group()
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self._close_if_outermost()
        else:
            self.state = "bad"
            return found.start()
        return found.end()

    def _close_if_outermost(self) -> None:
        if self._depth <= 0:
            self.state = "done"

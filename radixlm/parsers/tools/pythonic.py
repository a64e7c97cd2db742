"""Formats that write calls as a Python list of function calls with literal arguments; nothing is ever evaluated."""

import ast
import json
import re
from contextlib import suppress
from typing import ClassVar

from radixlm.parsers.reader import EndOfText, Malformed, Read, Tags
from radixlm.parsers.tools.base import FieldsParser, name_of

_WORD = re.compile(r"[\w.]*")
_PLAIN = re.compile(r"[^'\"\\()\[\]{},]*")


class Pythonic(FieldsParser):
    """`[ping(host="a"), pong()]`, wherever it stands; `<|python_start|>` and `<|python_end|>` around it are dropped.

    No tag says that a bracket begins calls, so it does only where a known function's name and `(` follow.
    """

    openers: ClassVar[tuple[str, ...]] = ("[", "<|python_start|>")
    closers: ClassVar[tuple[str, ...]] = ("<|python_end|>",)
    signs: ClassVar[tuple[str, ...]] = ("<|python_start|>",)
    bare = True

    def call(self, tag: str) -> Read[None]:
        reader = self.reader
        if tag != "[":
            yield from reader.space()
            yield from reader.expect("[")
        yield from self.items(self.function_call)

    def function_call(self) -> Read[None]:
        """Read `name(key=value, …)`."""
        reader = self.reader
        name = name_of((yield from reader.match(_WORD)))
        yield from reader.space()
        yield from reader.expect("(")
        if self.bare and not self.tools.knows(name):
            raise Malformed
        yield from self._arguments(name)

    def _arguments(self, name: str) -> Read[None]:
        """`key=value, …)`. The call is certain at its first `key=`, or at `)` when it has none."""
        reader = self.reader
        yield from reader.space()
        if (yield from reader.optional(")")):
            self.open(name)
            self.end_fields()
            return
        key = yield from self._key()
        self.open(name)
        while True:
            self.begin_field(key)
            yield from self._value()
            if not (yield from reader.optional(",")):
                break
            yield from reader.space()
            if (yield from reader.peek()) == ")":
                break
            reader.record(", ")
            key = yield from self._key()
            reader.forget()
        yield from reader.expect(")")
        self.end_fields()

    def _key(self) -> Read[str]:
        key = yield from self.reader.match(_WORD)
        yield from self.reader.space()
        yield from self.reader.expect("=")
        yield from self.reader.space()
        if not key.isidentifier():
            raise Malformed
        return key

    def _value(self) -> Read[None]:
        """Read a literal up to the `,` or `)` that ends it, and give it out as JSON."""
        parts: list[str] = []
        try:
            yield from self._literal(parts)
        except EndOfText:
            self.argue("".join(parts))
            raise
        self.argue(_json_of("".join(parts).strip()))

    def _literal(self, parts: list[str]) -> Read[None]:
        reader = self.reader
        depth = 0
        while True:
            parts.append((yield from reader.match(_PLAIN)))
            character = yield from reader.peek()
            if depth == 0 and character in ",)":
                return
            parts.append(reader.take(1))
            if character in "'\"":
                yield from self._string(character, parts)
            elif character in "([{":
                depth += 1
            elif character in ")]}":
                depth -= 1

    def _string(self, quote: str, parts: list[str]) -> Read[None]:
        ends = _SINGLE if quote == "'" else _DOUBLE
        while True:
            tag = yield from self.reader.until(ends, parts.append)
            parts.append(tag)
            if tag == quote:
                return
            yield from self.reader.peek()
            parts.append(self.reader.take(1))


_SINGLE = Tags("'", "\\")
_DOUBLE = Tags('"', "\\")


def _json_of(literal: str) -> str:
    """A Python or JSON literal as JSON; the text of any other expression as a string, for none is evaluated."""
    for read in (ast.literal_eval, json.loads):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return json.dumps(read(literal), ensure_ascii=False, allow_nan=False)
    return json.dumps(literal, ensure_ascii=False)


class Lfm2(Pythonic):
    """`<|tool_call_start|>[ping(host="a")]<|tool_call_end|>`, or a JSON list of objects between these tags."""

    openers = ("<|tool_call_start|>",)
    closers = ("<|tool_call_end|>",)
    signs = ()
    bare = False

    def call(self, tag: str) -> Read[None]:
        yield from self.reader.space()
        yield from self.reader.expect("[")
        yield from self.reader.space()
        is_json = (yield from self.reader.peek()) == "{"
        yield from self.items(self.object if is_json else self.function_call)

"""Gemma 4's calls: `<|tool_call>call:NAME{key:value, …}<tool_call|>`, a JSON with bare keys and tags for quotes."""

import re

from radixlm.parsers.reader import EndOfText, Malformed, Read, Tags
from radixlm.parsers.tools.base import ToolParser, name_of
from radixlm.parsers.tools.toolbox import KINDS, STRING
from radixlm.parsers.tools.values import escaped, json_text

_QUOTE = '<|"|>'
_QUOTES = Tags(_QUOTE)
_NAME = re.compile(r"[^\s{<]*")
_KEY = re.compile(r"[^\s:,{}\[\]<\"]*")
_SCALAR = re.compile(r"[^,{}\[\]<\"]*")
_MAX_DEPTH = 64


class Gemma4(ToolParser):
    """Strings are quoted with `<|"|>` (JSON's own quotes are understood too); everything else is as in JSON."""

    openers = ("<|tool_call>",)
    closers = ("<tool_call|>",)
    signs = ("<|tool_call>", "<tool_call|>")

    def call(self, tag: str) -> Read[None]:
        reader = self.reader
        yield from reader.space()
        yield from reader.expect("call:")
        yield from reader.space()
        name = name_of((yield from reader.match(_NAME)))
        yield from reader.space()
        if (yield from reader.peek()) != "{":
            raise Malformed
        self.open(name)
        yield from self._value(0)

    def _value(self, depth: int) -> Read[None]:
        """Read a value and give it out as JSON."""
        reader = self.reader
        if depth > _MAX_DEPTH:
            raise Malformed
        first = yield from reader.peek()
        if first in "{[":
            reader.take(1)
            self.argue(first)
            yield from self._members(first, depth)
        elif first == '"':
            yield from reader.json_value(self.argue)
        elif (yield from reader.optional(_QUOTE)):
            yield from self._string()
        else:
            yield from self._scalar()

    def _members(self, bracket: str, depth: int) -> Read[None]:
        reader = self.reader
        end = "}" if bracket == "{" else "]"
        yield from reader.space()
        if (yield from reader.optional(end)):
            self.argue(end)
            return
        while True:
            if bracket == "{":
                yield from self._key()
            yield from self._value(depth + 1)
            yield from reader.space()
            if not (yield from reader.optional(",")):
                break
            self.argue(", ")
            yield from reader.space()
        yield from reader.expect(end)
        self.argue(end)

    def _key(self) -> Read[None]:
        reader = self.reader
        if (yield from reader.peek()) == '"':
            yield from reader.json_value(self.argue)
        elif (yield from reader.optional(_QUOTE)):
            yield from self._string()
        else:
            self.argue('"')
            self.argue(escaped((yield from self._word(_KEY))))
            self.argue('"')
        yield from reader.space()
        yield from reader.expect(":")
        yield from reader.space()
        self.argue(": ")

    def _string(self) -> Read[None]:
        self.argue('"')
        yield from self.reader.until(_QUOTES, lambda text: self.argue(escaped(text)))
        self.argue('"')

    def _scalar(self) -> Read[None]:
        text = yield from self._word(_SCALAR)
        if not text.strip():
            raise Malformed
        self.argue(json_text(text.strip(), KINDS - STRING))

    def _word(self, pattern: re.Pattern[str]) -> Read[str]:
        """Read what `pattern` matches; when the text ends inside it, it has been given out as it stands."""
        self.reader.record()
        try:
            text = yield from self.reader.match(pattern)
        except EndOfText:
            self.argue(self.reader.forget())
            raise
        self.reader.forget()
        return text

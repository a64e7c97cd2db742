"""What a tool-call format is, and what its parsers have in common: calls, unknown names, layout. Knows no format."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from radixlm.parsers.events import ToolArguments, ToolOpen
from radixlm.parsers.machine import Machine
from radixlm.parsers.reader import EndOfText, Malformed, Read, Tags, ignore
from radixlm.parsers.tools.toolbox import STRING, Toolbox
from radixlm.parsers.tools.values import escaped, json_text

_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters")
_BESIDE = ("type", "id", "tool_call_id")
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[^\s<>{}()\[\]\"'`]+")


def name_of(text: str) -> str:
    """A function's name out of its place in a call; Malformed when it cannot be one."""
    name = text.strip()
    if _NAME.fullmatch(name) is None:
        raise Malformed
    return name


@dataclass(frozen=True)
class Frame:
    """What stands around a call's arguments in the model's own format; `{name}` in `begin` is the function's name.

    A text that contains `trigger` goes on as a call, so a grammar can begin there.
    """

    begin: str
    end: str
    trigger: str


class ToolParser(Machine, ABC):
    """Finds calls between `openers` and `closers`; the rest is content.

    A call is opened once its name and the beginning of its arguments are certain. Text that looks like a call and is
    none is handed on as it is. Calls of functions that are not offered are dropped. White space next to a call is
    layout, not content.

    A format is a subclass; its class attributes:
        openers: tags with which a call can begin. closers: tags that end one.
        signs: texts that the family's chat template has, every one of them; the first opener where empty.
        frame: what a grammar needs to know of the format; None when it has no fixed frame.
    """

    openers: ClassVar[tuple[str, ...]] = ()
    closers: ClassVar[tuple[str, ...]] = ()
    signs: ClassVar[tuple[str, ...]] = ()
    frame: ClassVar[Frame | None] = None

    def __init__(self, tools: Toolbox) -> None:
        super().__init__()
        self.tools = tools
        self.in_call = False
        self._seen = 0  # calls, dropped ones too
        self._opened = 0
        self._known = False
        self._said = False
        self._space: list[str] = []  # white space that is content only if more content follows
        self._beside_call = False
        self._drop_space = False

    @classmethod
    def why_not(cls, template: str) -> list[str]:
        """The reasons why a model with this chat template does not call in this format."""
        wanted = cls.signs or cls.openers[:1]
        return [f"the chat template has no {sign!r}" for sign in wanted if sign not in template]

    # ---- the format

    @abstractmethod
    def call(self, tag: str) -> Read[None]:
        """Read the call, or calls, that `tag` began. What is read before `open` is remembered."""

    def parse(self) -> Read[None]:
        tags = Tags(*self.openers, *self.closers)
        while True:
            tag = yield from self.reader.until(tags, self.say)
            if tag not in self.openers:
                if not self._seen:
                    self.say(tag)
                continue
            self.reader.record(tag)
            try:
                yield from self.call(tag)
            except Malformed:
                yield from self.recover()
            self.end_call()

    def recover(self) -> Read[None]:
        """After Malformed: what was remembered is content; the rest of an open call is its arguments, as it stands."""
        text = self.reader.forget()
        if self.in_call:
            self.argue(text)
            yield from self.reader.until(Tags(*self.closers), self.argue)
        else:
            self.say(text)

    def close(self) -> None:
        text = self.reader.leave()
        if self.in_call:
            self.argue(text)
        else:
            self.say(text)
        if not self._beside_call:
            super().say("".join(self._space))

    # ---- what calls say

    def open(self, name: str, call_id: str | None = None) -> None:
        """The call of `name` is certain."""
        self.reader.forget()
        self.in_call = True
        self._seen += 1
        self._beside_call = True
        self._known = self.tools.knows(name)
        if self._known:
            self.emit(ToolOpen(self._opened, name, call_id))
            self._opened += 1

    def argue(self, text: str) -> None:
        """More argument text of the open call. Half a surrogate pair, which no answer can carry, becomes U+FFFD."""
        if self._known:
            self.emit(ToolArguments(self._opened - 1, _HALF_PAIR.sub("\ufffd", text)))

    def end_call(self) -> None:
        if self.in_call:
            self.in_call = False
            self._drop_space = bool(self._space)

    def say(self, text: str) -> None:
        body = text.strip()
        if not body:
            if not self._drop_space:
                self._space.append(text)
            return
        start = text.index(body[0])
        if not self._drop_space:
            self._space.append(text[:start])
        before = "".join(self._space) if self._said or not self._seen else ""
        self._space = [text[start + len(body) :]]
        self._said = True
        self._beside_call = self._drop_space = False
        super().say(before + body)

    # ---- JSON bodies

    def object(self, bare: bool = False) -> Read[None]:
        """Read one object with a function's name and its arguments, in any order; further members are passed over.

        `bare`: no tag said that it is a call, so it is one only if its function is known.
        """
        reader = self.reader
        yield from reader.expect("{")
        name: str | None = None
        kept: str | None = None
        done = False
        while True:
            key = yield from self._member()
            if key in _NAMES and name is None:
                name = name_of((yield from reader.json_string()))
                if bare and not self.tools.knows(name):
                    raise Malformed
            elif key in _ARGUMENTS and not done and name is not None:
                self.open(name)
                yield from self.json_arguments()
                self.end_call()
                done = True
            elif key in _ARGUMENTS and kept is None:
                parts: list[str] = []
                yield from reader.json_value(parts.append)
                kept = "".join(parts)
            elif bare and name is None and key not in _BESIDE:
                raise Malformed
            else:
                yield from reader.json_value(ignore)
            yield from reader.space()
            if not (yield from reader.optional(",")):
                break
        yield from reader.expect("}")
        if not done:
            if name is None:
                raise Malformed
            self.open(name)
            self.argue("{}" if kept is None else kept)
            self.end_call()

    def _member(self) -> Read[str]:
        """Read a member's key and colon; the key."""
        yield from self.reader.space()
        key = yield from self.reader.json_string()
        yield from self.reader.space()
        yield from self.reader.expect(":")
        yield from self.reader.space()
        return key

    def items(self, item: Callable[[], Read[None]]) -> Read[None]:
        """Read what follows `[`: items with commas between them, and `]`."""
        while True:
            yield from self.reader.space()
            yield from item()
            yield from self.reader.space()
            if not (yield from self.reader.optional(",")):
                break
            self.reader.record(",")
        yield from self.reader.expect("]")

    def json_arguments(self) -> Read[None]:
        """Read a JSON value as the open call's arguments. A string is taken for JSON inside a string."""
        yield from self.reader.space()
        if (yield from self.reader.peek()) != '"':
            yield from self.reader.json_value(self.argue)
            return
        parts: list[str] = []
        try:
            yield from self.reader.json_value(parts.append)
        except EndOfText:
            self.argue("".join(parts))
            raise
        raw = "".join(parts)
        try:
            self.argue(json.loads(raw, strict=False))
        except ValueError:
            self.argue(raw)


class FieldsParser(ToolParser):
    """For formats that write parameters one by one: the argument object is put together as they come.

    A truncated call has truncated JSON: an open string stays open, an open object too.
    """

    def __init__(self, tools: Toolbox) -> None:
        super().__init__(tools)
        self.function = ""
        self._fields = 0

    def open(self, name: str, call_id: str | None = None) -> None:
        self.function = name
        self._fields = 0
        super().open(name, call_id)

    def begin_field(self, key: str) -> None:
        """A parameter whose name is known in full."""
        self._begin_key()
        self.argue(escaped(key) + '": ')

    def _begin_key(self) -> None:
        self.argue('{"' if self._fields == 0 else ', "')
        self._fields += 1

    def key(self, end: Tags) -> Read[str]:
        """Read a parameter's name up to and over `end`, and give it out as a key; the name."""
        parts: list[str] = []
        self._begin_key()

        def take(text: str) -> None:
            parts.append(text)
            self.argue(escaped(text))

        yield from self.reader.until(end, take)
        self.argue('": ')
        return "".join(parts)

    def value(self, end: Tags, kinds: Set[str]) -> Read[None]:
        """Read a value up to and over `end`. Strings are given out as they come, other types once they are whole."""
        if kinds == STRING:
            self.argue('"')
            yield from self.reader.until(end, lambda text: self.argue(escaped(text)))
            self.argue('"')
            return
        parts: list[str] = []
        try:
            yield from self.reader.until(end, parts.append)
        except EndOfText:
            self.argue("".join(parts))
            raise
        self.argue(json_text("".join(parts), kinds))

    def end_fields(self) -> None:
        self.argue("{}" if self._fields == 0 else "}")
        self.end_call()

    def gap(self, tags: Tags) -> Read[str]:
        """Read up to and over one of `tags`; what stands before it, where only layout belongs, is content."""
        parts: list[str] = []
        try:
            tag = yield from self.reader.until(tags, parts.append)
        finally:
            text = "".join(parts).strip()
            if text:
                self.say(text)
        return tag


ToolFormat: TypeAlias = type[ToolParser]

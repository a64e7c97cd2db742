"""Formats whose calls are JSON objects that hold the function's name and its arguments."""

import re
from typing import ClassVar

from radixlm.parsers.reader import Malformed, Read
from radixlm.parsers.tools.base import Frame, ToolParser, name_of

_COMPACT_NAME = re.compile(r"[^\s\[{]*")
_COMPACT_ID = re.compile(r"[^\[{]*")


class Hermes(ToolParser):
    """`<tool_call>{"name": …, "arguments": …}</tool_call>`, with or without line breaks; also Qwen 2.5 and 3."""

    openers: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    closers: ClassVar[tuple[str, ...]] = ("</tool_call>",)
    signs: ClassVar[tuple[str, ...]] = ("<tool_call>", "arguments")
    frame: ClassVar[Frame | None] = Frame('<tool_call>{"name":"{name}", "arguments":', "}</tool_call>", "<tool_call>")

    def call(self, tag: str) -> Read[None]:
        yield from self.reader.space()
        yield from self.object()


class Qwen(Hermes):
    """Hermes' format with the line breaks that Qwen was trained with."""

    frame = Frame('<tool_call>\n{"name":"{name}", "arguments":', "}\n</tool_call>", "<tool_call>")


class InternS1(Hermes):
    """`<|action_start|> <|plugin|>{"name": …, "parameters": …}<|action_end|>`."""

    openers = ("<|action_start|>",)
    closers = ("<|action_end|>",)
    signs = ()
    frame = None

    def call(self, tag: str) -> Read[None]:
        yield from self.reader.space()
        yield from self.reader.expect("<|plugin|>")
        yield from super().call(tag)


class GigaChat3(Hermes):
    """`function call<|role_sep|>` or `<|function_call|>`, then `{"name": …, "arguments": …}`."""

    openers = ("<|function_call|>", "function call<|role_sep|>")
    closers = ()
    signs = ()
    frame = None


class Llama3(ToolParser):
    """`<|python_tag|>{"name": …, "parameters": …}`, or such an object at the very beginning; several after `;`."""

    openers = ("<|python_tag|>",)
    signs = ("<|start_header_id|>", "parameters")
    frame = Frame('<|python_tag|>{"name":"{name}", "arguments":', "}", "<|python_tag|>")

    def parse(self) -> Read[None]:
        self.reader.record()
        try:
            yield from self._objects(bare=True)
        except Malformed:
            yield from self.recover()
        yield from super().parse()

    def call(self, tag: str) -> Read[None]:
        yield from self._objects(bare=False)

    def _objects(self, bare: bool) -> Read[None]:
        while True:
            yield from self.reader.space()
            yield from self.object(bare)
            yield from self.reader.space()
            if not (yield from self.reader.optional(";")):
                return
            self.reader.record(";")


class Mistral(ToolParser):
    """`[TOOL_CALLS] [{"name": …, "arguments": …}, …]`, or `[TOOL_CALLS]name[ARGS]{…}` once per call."""

    openers = ("[TOOL_CALLS]",)
    frame = Frame('[TOOL_CALLS] [{"name":"{name}", "arguments":', "}]", "[TOOL_CALLS]")

    def call(self, tag: str) -> Read[None]:
        yield from self.reader.space()
        first = yield from self.reader.peek()
        if first == "[":
            self.reader.take(1)
            yield from self.items(self.object)
        elif first == "{":
            yield from self.object()
        else:
            yield from self._compact()

    def _compact(self) -> Read[None]:
        """The name ends at `[ARGS]`, at `[CALL_ID]`, or where the arguments' object begins."""
        reader = self.reader
        name = name_of((yield from reader.match(_COMPACT_NAME)))
        yield from reader.space()
        if (yield from reader.optional("[CALL_ID]")):
            yield from reader.match(_COMPACT_ID)
        yield from reader.optional("[ARGS]")
        yield from reader.space()
        if (yield from reader.peek()) != "{":
            raise Malformed
        self.open(name)
        yield from self.json_arguments()


class Cohere(ToolParser):
    """`<|START_ACTION|>[{"tool_call_id": …, "tool_name": …, "parameters": …}]<|END_ACTION|>`."""

    openers = ("<|START_ACTION|>",)
    closers = ("<|END_ACTION|>",)

    def call(self, tag: str) -> Read[None]:
        yield from self.reader.space()
        if (yield from self.reader.peek()) == "[":
            self.reader.take(1)
            yield from self.items(self.object)
        else:
            yield from self.object()


class Apertus(ToolParser):
    """`<|tools_prefix|>[{"name": {arguments}}]<|tools_suffix|>`: the only key is the function's name."""

    openers = ("<|tools_prefix|>",)
    closers = ("<|tools_suffix|>",)
    frame = Frame('<|tools_prefix|>[{"{name}": ', "}]<|tools_suffix|>", "<|tools_prefix|>")

    def call(self, tag: str) -> Read[None]:
        yield from self.reader.space()
        yield from self.reader.expect("[")
        yield from self.items(self._pair)

    def _pair(self) -> Read[None]:
        yield from self.reader.expect("{")
        yield from self.reader.space()
        name = name_of((yield from self.reader.json_string()))
        yield from self.reader.space()
        yield from self.reader.expect(":")
        yield from self.reader.space()
        self.open(name)
        yield from self.json_arguments()
        self.end_call()
        yield from self.reader.space()
        yield from self.reader.expect("}")


class JsonArray(ToolParser):
    """A bare array of `{"name": …, "parameters": …}`: what the schema of parsers/constraint.py makes a model say."""

    def parse(self) -> Read[None]:
        self.reader.record()
        try:
            yield from self.reader.space()
            yield from self.reader.expect("[")
            yield from self.items(self.object)
        except Malformed:
            yield from self.recover()

    def call(self, tag: str) -> Read[None]:
        yield from self.object()

"""Formats that write the function's name between tags and its arguments as one JSON value after it."""

from typing import ClassVar

from radixlm.parsers.harmony import END, MESSAGE, header_of, read_body
from radixlm.parsers.reader import Malformed, Read, Tags
from radixlm.parsers.tools.base import Frame, ToolParser, name_of

_SEP = Tags("<｜tool▁sep｜>")
_LINE = Tags("\n")
_ARGUMENT = Tags("<|tool_call_argument_begin|>")
_FENCE = "```"


class DeepSeek(ToolParser):
    """DeepSeek V3 and R1: `…begin｜>function<｜tool▁sep｜>NAME`, a line break and fenced JSON, `<｜tool▁call▁end｜>`.
    V3.1: `…begin｜>NAME<｜tool▁sep｜>` and plain JSON. Each is told by what follows the separator."""

    openers = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    closers = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
    frame: ClassVar[Frame | None] = Frame(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
        "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜>",
    )

    def call(self, tag: str) -> Read[None]:
        reader = self.reader
        if tag == self.openers[0]:
            yield from reader.space()
            yield from reader.expect(self.openers[1])
        name, _ = yield from reader.text_until(_SEP)
        yield from reader.space()
        fenced = (yield from reader.peek()) != "{"
        if fenced:
            name, _ = yield from reader.text_until(_LINE)
            yield from reader.space()
            yield from reader.expect(_FENCE)
            yield from reader.optional("json")
        name = name_of(name)
        yield from reader.space()
        self.open(name)
        yield from self.json_arguments()
        self.end_call()
        yield from reader.space()
        if fenced:
            yield from reader.optional(_FENCE)


class DeepSeekV31(DeepSeek):
    """The same parser; a grammar would have to know the newer frame."""

    frame = None


class KimiK2(ToolParser):
    """`<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>` inside a section.

    The call's id is the model's own, `functions.NAME:0`: its templates want it back like that.
    """

    openers = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
    closers = ("<|tool_call_end|>", "<|tool_calls_section_end|>")

    def call(self, tag: str) -> Read[None]:
        if tag == self.openers[0]:
            yield from self.reader.space()
            yield from self.reader.expect(self.openers[1])
        header, _ = yield from self.reader.text_until(_ARGUMENT)
        call_id = header.strip()
        path, colon, index = call_id.rpartition(":")
        numbered = bool(colon) and index.isdigit()
        name = name_of((path if numbered else call_id).removeprefix("functions."))
        yield from self.reader.space()
        self.open(name, call_id if numbered else None)
        yield from self.json_arguments()


class Harmony(ToolParser):
    """gpt-oss: a message to a function, `…<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}`.

    It ends with `<|call|>`, which is a stop token and so mostly not in the text.
    """

    openers = ("<|start|>", "<|channel|>")
    closers = END
    signs = ("<|channel|>", "<|message|>")

    def parse(self) -> Read[None]:
        self.reader.record()
        if (yield from self.reader.optional(" to=")):  # the prompt has `<|start|>assistant` already
            try:
                yield from self.call(" to=")
            except Malformed:
                yield from self.recover()
            self.end_call()
        self.reader.forget()
        yield from super().parse()

    def call(self, tag: str) -> Read[None]:
        while True:
            text, _ = yield from self.reader.text_until(MESSAGE)
            function = header_of(tag + text).function
            if function is None:
                raise Malformed
            self.open(name_of(function))
            tag = yield from read_body(self.reader, self.argue)
            self.end_call()
            if tag in END:
                return
            self.reader.record(tag)

"""Formats that write parameters one by one between tags; their types come from the function's schema."""

import re
from typing import ClassVar

from radixlm.parsers.reader import Malformed, Read, Tags
from radixlm.parsers.tools.base import FieldsParser, name_of
from radixlm.parsers.tools.toolbox import KINDS, STRING

_QUOTE = Tags('"')
_ANGLE = Tags(">")
_GLM_NAME = re.compile(r"[^\s<>{}]*")
_LINE_ANGLE = Tags(">", "\n")


class Qwen3Coder(FieldsParser):
    """`<tool_call><function=NAME><parameter=KEY>⏎VALUE⏎</parameter></function></tool_call>`; the outer tag may lack."""

    openers = ("<tool_call>", "<function=")
    closers = ("</function>", "</tool_call>")
    signs = ("<function=", "<parameter=")
    _inside: ClassVar[Tags] = Tags("<parameter=", "</function>", "</tool_call>")
    _value_end: ClassVar[Tags] = Tags("\n</parameter>", "</parameter>")

    def call(self, tag: str) -> Read[None]:
        reader = self.reader
        if tag == "<tool_call>":
            yield from reader.space()
            yield from reader.expect("<function=")
        name, end = yield from reader.text_until(_LINE_ANGLE)
        if end != ">":
            raise Malformed
        self.open(name_of(name))
        while (yield from self.gap(self._inside)) == "<parameter=":
            key = yield from self.key(_ANGLE)
            yield from reader.optional("\n")
            yield from self.value(self._value_end, self.tools.kinds(self.function, key))
        self.end_fields()


class Glm(FieldsParser):
    """`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`, with or without line breaks."""

    openers: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    closers: ClassVar[tuple[str, ...]] = ("</tool_call>",)
    signs: ClassVar[tuple[str, ...]] = ("<arg_key>",)
    _lead: ClassVar[str] = ""
    _inside: ClassVar[Tags] = Tags("<arg_key>", "</tool_call>")
    _key_end: ClassVar[Tags] = Tags("</arg_key>")
    _value_begin: ClassVar[Tags] = Tags("<arg_value>")
    _value_end: ClassVar[Tags] = Tags("</arg_value>")

    def call(self, tag: str) -> Read[None]:
        reader = self.reader
        yield from reader.space()
        name = name_of((yield from reader.match(_GLM_NAME)))
        yield from reader.space()
        if (yield from reader.optional(self._lead)):
            yield from reader.space()
        has_fields = yield from reader.optional("<arg_key>")
        if not has_fields:
            yield from reader.expect("</tool_call>")
        self.open(name)
        while has_fields:
            key = yield from self.key(self._key_end)
            yield from self.gap(self._value_begin)
            yield from self.value(self._value_end, self.tools.kinds(self.function, key))
            has_fields = (yield from self.gap(self._inside)) == "<arg_key>"
        self.end_fields()


class Hunyuan(Glm):
    """GLM's fields after `NAME<tool_sep>`, inside `<tool_calls>…</tool_calls>`."""

    openers = ("<tool_calls>", "<tool_call>")
    closers = ("</tool_call>", "</tool_calls>")
    signs = ("<tool_sep>", "<arg_key>")
    _lead = "<tool_sep>"

    def call(self, tag: str) -> Read[None]:
        if tag == "<tool_calls>":
            yield from self.reader.space()
            yield from self.reader.expect("<tool_call>")
        yield from super().call(tag)


class Invoke(FieldsParser):
    """`<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>` inside a section; subclasses say the
    section's tags, what may stand before `invoke`, and the prefix of the inner tags.

    A parameter's attribute `string="true"` or `"false"` says its type where there is one. In place of parameters
    there may be one JSON object.
    """

    prefix: ClassVar[str] = ""
    lead: ClassVar[tuple[str, ...]] = ()

    def call(self, tag: str) -> Read[None]:
        reader, prefix = self.reader, self.prefix
        if tag in self.openers[:1]:
            yield from reader.space()
            for lead in self.lead:
                yield from reader.expect(lead)
                yield from reader.space()
            yield from reader.expect(f"<{prefix}invoke name=")
        elif tag in self.lead:
            yield from reader.space()
            yield from reader.expect(f"<{prefix}invoke name=")
        yield from reader.expect('"')
        name, _ = yield from reader.text_until(_QUOTE)
        yield from reader.text_until(_ANGLE)
        self.open(name_of(name))
        yield from reader.space()
        if (yield from reader.peek()) == "{":
            yield from self.json_arguments()
            self.end_call()
            return
        inside = Tags(f'<{prefix}parameter name="', f"</{prefix}invoke>")
        end = Tags(f"</{prefix}parameter>")
        while (yield from self.gap(inside)).endswith('"'):
            key = yield from self.key(_QUOTE)
            attributes, _ = yield from reader.text_until(_ANGLE)
            yield from self.value(end, self._kinds(key, attributes))
        self.end_fields()

    def _kinds(self, key: str, attributes: str) -> frozenset[str]:
        if 'string="true"' in attributes:
            return STRING
        if 'string="false"' in attributes:
            return KINDS - STRING
        return self.tools.kinds(self.function, key)


class MiniMaxM2(Invoke):
    """Plain tags inside `<minimax:tool_call>`."""

    openers = ("<minimax:tool_call>", "<invoke name=")
    closers = ("</invoke>", "</minimax:tool_call>")


class Step3(Invoke):
    """Each call inside tokens of its own: `<｜tool_call_begin｜>function<｜tool_sep｜>…<｜tool_call_end｜>`."""

    openers = ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>function<｜tool_sep｜>", "<steptml:invoke name=")
    closers = ("</steptml:invoke>", "<｜tool_call_end｜>", "<｜tool_calls_end｜>")
    signs = ("steptml",)
    prefix = "steptml:"
    lead = ("<｜tool_call_begin｜>function<｜tool_sep｜>",)


class DeepSeekV32(Invoke):
    """Tags marked with `｜DSML｜` inside `function_calls`."""

    openers = ("<｜DSML｜function_calls>", "<｜DSML｜invoke name=")
    closers = ("</｜DSML｜invoke>", "</｜DSML｜function_calls>")
    prefix = "｜DSML｜"


class DeepSeekV4(Invoke):
    """As V3.2, inside `tool_calls`."""

    openers = ("<｜DSML｜tool_calls>", "<｜DSML｜invoke name=")
    closers = ("</｜DSML｜invoke>", "</｜DSML｜tool_calls>")
    prefix = "｜DSML｜"


class GigaChat35(Invoke):
    """As DeepSeek V4, with its own mark."""

    openers = ("<｜GCML｜tool_calls>", "<｜GCML｜invoke name=")
    closers = ("</｜GCML｜invoke>", "</｜GCML｜tool_calls>")
    prefix = "｜GCML｜"

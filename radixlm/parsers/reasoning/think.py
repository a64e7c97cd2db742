"""Thinking between two tags, as most families write it; one row per family. Knows no model's name."""

import re
from dataclasses import dataclass

from radixlm.parsers.events import Content, Reasoning
from radixlm.parsers.reader import Malformed, Read, Tags
from radixlm.parsers.reasoning.base import ReasoningParser
from radixlm.protocol.grammar import Thinking

_NEWLINES = re.compile(r"\n*")


@dataclass(frozen=True)
class ThinkFormat:
    """`opener` thinking `closer` answer.

    Attributes:
        signs: texts that the family's chat template has, every one of them.
        unwrap: tags around the answer that are not part of it.
        tools_interrupt: the model may begin a tool call without closing its thinking.
        drops_newlines: line breaks right after the closer are layout.
    """

    opener: str = "<think>"
    closer: str = "</think>"
    signs: tuple[str, ...] = ()
    unwrap: tuple[str, ...] = ()
    tools_interrupt: bool = False
    drops_newlines: bool = False
    keeps_special_tokens: bool = False
    inside_without_prompt: bool = False

    def why_not(self, template: str) -> list[str]:
        wanted = self.signs or (self.closer,)
        return [f"the chat template has no {sign!r}" for sign in wanted if sign not in template]

    def inside(self, prompt: str, continued: str = "") -> bool:
        given = prompt[: -len(continued)] if continued and prompt.endswith(continued) else prompt
        if self.closer in continued:
            return False
        if continued.lstrip().startswith(self.opener):
            return True
        return given.rstrip().endswith(self.opener.rstrip())

    def thinking(self, prompt: str, continued: str = "") -> Thinking | None:
        if self.inside(prompt, continued):
            return Thinking(self.closer)
        if continued or prompt.rstrip().endswith(self.closer):
            return None
        return Thinking(self.closer, self.opener, inside=False)

    def parser(self, inside: bool, interrupts: tuple[str, ...] = ()) -> ReasoningParser:
        return _Think(self, inside, interrupts if self.tools_interrupt else ())


class _Think(ReasoningParser):
    """The opener counts only where an answer begins (it may be left out there when the prompt has it already);
    afterwards it is plain text, and so is everything after the closer."""

    def __init__(self, form: ThinkFormat, inside: bool, interrupts: tuple[str, ...]) -> None:
        super().__init__()
        self._form = form
        self._inside = inside
        self._ends = Tags(form.closer, *interrupts)
        self._unwrap = Tags(*form.unwrap)
        if inside:
            self.begin_span(0)

    def parse(self) -> Read[None]:
        yield from self._begin()
        if self._inside:
            tag = yield from self.reader.until(self._ends, self._think)
            closed = tag == self._form.closer
            self._inside = False
            self.end_span(self.reader.position - (0 if closed else len(tag)))
            if not closed:
                self.say(tag)
            elif self._form.drops_newlines:
                yield from self.reader.match(_NEWLINES)
        while True:
            yield from self.reader.until(self._unwrap, self.say)

    def _begin(self) -> Read[None]:
        """Read an opener if the text begins with one; what is read in vain is handed on."""
        self.reader.record()
        try:
            yield from self.reader.space()
            yield from self.reader.expect(self._form.opener)
        except Malformed:
            self._hand_on(self.reader.forget())
            return
        self.reader.forget()
        if not self._inside:
            self._inside = True
            self.begin_span(0)

    def _think(self, text: str) -> None:
        self.emit(Reasoning(text))

    def close(self) -> None:
        self._hand_on(self.reader.leave())

    def _hand_on(self, text: str) -> None:
        self.emit(Reasoning(text) if self._inside else Content(text))


THINK = ThinkFormat(tools_interrupt=True)
ALWAYS_THINK = ThinkFormat(inside_without_prompt=True)
QWEN3 = ThinkFormat(signs=("</think>", "enable_thinking"), tools_interrupt=True)
QWEN3_THINKING = ThinkFormat(tools_interrupt=True, inside_without_prompt=True)
DEEPSEEK_R1 = ThinkFormat(signs=("</think>", "<｜Assistant｜>"), inside_without_prompt=True)
DEEPSEEK_V3 = ThinkFormat(signs=("</think>", "<｜Assistant｜>", "thinking"), tools_interrupt=True)
GLM45 = ThinkFormat(signs=("</think>", "<|observation|>"), tools_interrupt=True)
KIMI = ThinkFormat("◁think▷", "◁/think▷", keeps_special_tokens=True)
KIMI_K2 = ThinkFormat(signs=("</think>", "<|tool_calls_section_begin|>"), tools_interrupt=True)
MISTRAL = ThinkFormat("[THINK]", "[/THINK]", keeps_special_tokens=True)
GEMMA4 = ThinkFormat("<|channel>thought\n", "<channel|>", signs=("<|channel>", "<channel|>"), keeps_special_tokens=True)
COHERE = ThinkFormat(
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    unwrap=("<|START_TEXT|>", "<|END_TEXT|>"),
    keeps_special_tokens=True,
    inside_without_prompt=True,
)
GRANITE = ThinkFormat(drops_newlines=True)

"""A format that does not split: the answer keeps its thinking, and gets back the opener that the prompt holds."""

from radixlm.parsers.reader import Malformed, Read
from radixlm.parsers.reasoning.base import ReasoningParser
from radixlm.protocol.grammar import Thinking

_OPENER = "<think>"
_CLOSER = "</think>"


class _Append(ReasoningParser):
    def __init__(self, inside: bool) -> None:
        super().__init__()
        self._inside = inside

    def parse(self) -> Read[None]:
        if self._inside:
            self.reader.record()
            try:
                yield from self.reader.space()
                yield from self.reader.expect(_OPENER)
            except Malformed:
                self.say(_OPENER)
            self.say(self.reader.forget())
        yield from self.reader.rest(self.say)


class AppendThink:
    """Content that begins with `<think>` where the prompt ends with it."""

    keeps_special_tokens = False
    inside_without_prompt = True

    def why_not(self, template: str) -> list[str]:
        return ["it is a choice, not a format"]

    def inside(self, prompt: str, continued: str = "") -> bool:
        return not continued and prompt.rstrip().endswith(_OPENER)

    def thinking(self, prompt: str, continued: str = "") -> Thinking | None:
        return Thinking(_CLOSER) if self.inside(prompt, continued) else None

    def parser(self, inside: bool, interrupts: tuple[str, ...] = ()) -> ReasoningParser:
        return _Append(inside)


FORMAT = AppendThink()

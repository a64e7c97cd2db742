"""gpt-oss: the analysis channel is thinking, the final one the answer. Calls are left as they are, for their parser."""

from radixlm.parsers.events import Content, Reasoning
from radixlm.parsers.harmony import BEGIN, MESSAGE, header_of, read_body
from radixlm.parsers.reader import Read
from radixlm.parsers.reasoning.base import ReasoningParser
from radixlm.protocol.grammar import Thinking

_FINAL = "<|channel|>final<|message|>"  # the answer's header; analysis and calls come before it


class _Harmony(ReasoningParser):
    """Messages of one kind are set apart by a line break; text outside any message is content."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[type[Content] | type[Reasoning]] = set()

    def parse(self) -> Read[None]:
        tag = yield from self._first()
        while True:
            start = self.reader.position - len(tag)
            self.reader.record(tag)
            header_text, _ = yield from self.reader.text_until(MESSAGE)
            raw = self.reader.forget()
            header = header_of(tag + header_text)
            if header.function is not None:
                self.say(raw)
                tag = yield from read_body(self.reader, self.say)
                if tag != "<|start|>":
                    self.say(tag)
            elif header.channel == "analysis":
                self.begin_span(start)
                self._separate(Reasoning)
                tag = yield from read_body(self.reader, self._think)
                self.end_span(self.reader.position - (len(tag) if tag == "<|start|>" else 0))
            else:
                self._separate(Content)
                tag = yield from read_body(self.reader, self.say)
            if tag != "<|start|>":
                tag = yield from self.reader.until(BEGIN, self.say)

    def _first(self) -> Read[str]:
        """The tag that begins the first message. The prompt has `<|start|>assistant`, so a recipient may come first."""
        self.reader.record()
        if (yield from self.reader.optional(" to=")):
            return self.reader.forget()
        self.reader.forget()
        return (yield from self.reader.until(BEGIN, self.say))

    def _separate(self, kind: type[Content] | type[Reasoning]) -> None:
        if kind in self._said:
            self.emit(kind("\n"))
        self._said.add(kind)

    def _think(self, text: str) -> None:
        self.emit(Reasoning(text))


class Harmony:
    """The format of gpt-oss. Its prompts never end inside a message, so its answers begin with a header."""

    keeps_special_tokens = True
    inside_without_prompt = False

    def why_not(self, template: str) -> list[str]:
        return [] if "<|channel|>" in template else ["the chat template has no '<|channel|>'"]

    def inside(self, prompt: str, continued: str = "") -> bool:
        return False

    def thinking(self, prompt: str, continued: str = "") -> Thinking | None:
        return Thinking(_FINAL)

    def parser(self, inside: bool, interrupts: tuple[str, ...] = ()) -> ReasoningParser:
        return _Harmony()


FORMAT = Harmony()

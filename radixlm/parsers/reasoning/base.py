"""What a reasoning format is: how to tell whether it has begun, and a parser that splits it off. Knows no route."""

from typing import Protocol

from radixlm.parsers.machine import Machine
from radixlm.protocol.grammar import Thinking


class ReasoningParser(Machine):
    """Splits thinking from the answer.

    Attributes:
        spans: the (start, end) ranges of the text, in characters, that are thinking, tags included; the last one may
            still be open (end None).
    """

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[int, int | None]] = []

    def begin_span(self, start: int) -> None:
        self.spans.append((start, None))

    def end_span(self, end: int) -> None:
        self.spans[-1] = (self.spans[-1][0], end)


class ReasoningFormat(Protocol):
    """A family's way to mark its thinking.

    Attributes:
        keeps_special_tokens: the marks are special tokens, so text must be decoded with them.
        inside_without_prompt: whether a text begins inside thinking where no prompt tells.
    """

    @property
    def keeps_special_tokens(self) -> bool: ...
    @property
    def inside_without_prompt(self) -> bool: ...

    def why_not(self, template: str) -> list[str]:
        """The reasons why a model with this chat template does not think in this format."""

    def thinking(self, prompt: str, continued: str = "") -> Thinking | None:
        """How the answer after the rendered `prompt` is told from thinking; None when it begins at once."""

    def inside(self, prompt: str, continued: str = "") -> bool:
        """Whether what follows the rendered `prompt` begins inside thinking.

        `continued` is the end of the prompt that is the assistant's own text (continue_final_message).
        """

    def parser(self, inside: bool, interrupts: tuple[str, ...] = ()) -> ReasoningParser:
        """A parser for one answer. `interrupts` are tags that begin a tool call of the model's family."""

"""How the answers to one prompt are read: which parsers, where they begin, how thinking is counted. Knows no route."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from radixlm.frontend.choice import ChoiceRequest
from radixlm.parsers.pipeline import AnswerParser
from radixlm.parsers.reasoning.table import REASONING
from radixlm.parsers.tools.base import ToolFormat
from radixlm.parsers.tools.json_calls import JsonArray
from radixlm.parsers.tools.table import TOOL_CALLS
from radixlm.protocol.grammar import KINDS
from radixlm.server.services import Services, Tokenizer
from radixlm.server.tooling import ToolUse

_TAIL_TOKENS = 64  # of a prompt of token ids: enough to see whether it ends inside thinking


class Parsing:
    """The server's parsers as one request uses them.

    Attributes:
        keeps_special_tokens: answers must be decoded with their special tokens, because parsers look for them.
    """

    def __init__(
        self,
        services: Services,
        tools: ToolUse | None = None,
        separate_reasoning: bool = True,
        stream_reasoning: bool = True,
        never_empty: bool = False,
    ) -> None:
        """`never_empty`: an answer that is only thinking is given out as content too."""
        name = services.reasoning_parser if separate_reasoning else None
        self._services = services
        self._toolbox = tools.toolbox if tools is not None else None
        self._reasoning = None if name is None else REASONING.load(name)
        self._calls = None if tools is None else _format_of(services, tools)
        self._hold_reasoning = not stream_reasoning
        self._never_empty = never_empty
        self.keeps_special_tokens = tools is not None or (
            self._reasoning is not None and self._reasoning.keeps_special_tokens
        )

    def parsers(self, request: ChoiceRequest, continued: str = "") -> "Parsers":
        """What makes a parser for each answer to `request`; `continued` is its end that the assistant has said."""
        inside = self._reasoning is not None and self._reasoning.inside(_prompt(self._services, request), continued)
        return Parsers(self, inside, bool(request.sampling_params.get("skip_special_tokens", True)))

    def begin(self, inside: bool) -> AnswerParser:
        """A parser for one answer, which begins inside thinking or not."""
        openers = self._calls.openers if self._calls is not None else ()
        return AnswerParser(
            self._reasoning.parser(inside, openers) if self._reasoning is not None else None,
            self._calls(self._toolbox) if self._calls is not None and self._toolbox is not None else None,
            self._hold_reasoning,
            self._never_empty,
        )

    def counter(self, skip_special_tokens: bool) -> "ReasoningCounter | None":
        """What counts the tokens of thinking; None where thinking is not told apart."""
        tokenizer = self._services.manager.tokenizer
        if self._reasoning is None or tokenizer is None:
            return None
        return ReasoningCounter(tokenizer, skip_special_tokens)


def with_thinking(services: Services, request: ChoiceRequest, continued: str = "") -> ChoiceRequest:
    """`request`, told how its answer is told from thinking, where something depends on that."""
    name, params = services.reasoning_parser, request.sampling_params
    if name is None or not (request.processor or any(params.get(kind) for kind in KINDS)):
        return request
    return replace(request, thinking=REASONING.load(name).thinking(_prompt(services, request), continued))


def _format_of(services: Services, tools: ToolUse) -> ToolFormat | None:
    """The format in which calls come: the model's own, or a bare array where a schema demands that."""
    if tools.demand is not None and tools.demand.kind == "json_schema":
        return JsonArray
    return None if services.tool_call_parser is None else TOOL_CALLS.load(services.tool_call_parser)


def _prompt(services: Services, request: ChoiceRequest) -> str:
    """The prompt's text, at least its end."""
    tokenizer = services.manager.tokenizer
    if request.text is not None or tokenizer is None:
        return request.text or ""
    vocab_size = services.manager.card.vocab_size
    ids = [id_ for id_ in (request.input_ids or ())[-_TAIL_TOKENS:] if 0 <= id_ < vocab_size]
    return tokenizer.decode(ids, skip_special_tokens=False)


class Parsers:
    """Makes the parser of each answer to one prompt."""

    def __init__(self, parsing: Parsing, inside: bool, skip_special_tokens: bool) -> None:
        self._parsing = parsing
        self._inside = inside
        self._skip_special_tokens = skip_special_tokens

    def begin(self) -> AnswerParser:
        return self._parsing.begin(self._inside)

    def counter(self) -> "ReasoningCounter | None":
        return self._parsing.counter(self._skip_special_tokens)


class ReasoningCounter:
    """Counts the tokens of one answer whose text lies in thinking, its tags included.

    A token belongs to thinking if its last character does. Feed the tokens in order; counting is cheap at any time.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._ends: list[int] = []  # characters of the text up to and with each token

    def feed(self, token_ids: Sequence[int]) -> None:
        end = self._ends[-1] if self._ends else 0
        for id_ in token_ids:
            end += self._characters(id_)
            self._ends.append(end)

    def count(self, spans: Sequence[tuple[int, int | None]]) -> int:
        """`spans` are ranges of the text, in characters; the last may be open."""
        ends = self._ends
        total = 0
        for start, end in spans:
            first = bisect_right(ends, start) if start else 0
            total += (len(ends) if end is None else bisect_right(ends, end)) - first
        return total

    def _characters(self, id_: int) -> int:
        """How many characters begin in this token."""
        if self._skip_special_tokens and self._tokenizer.is_special(id_):
            return 0
        return sum(byte & 0xC0 != 0x80 for byte in self._tokenizer.piece(id_))

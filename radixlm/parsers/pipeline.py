"""One answer's text through its parsers: reasoning first, then tool calls. Serves streams and whole answers."""

from collections.abc import Iterable, Sequence

from radixlm.parsers.events import Content, Event, Reasoning, merged
from radixlm.parsers.machine import Machine
from radixlm.parsers.reasoning.base import ReasoningParser


class AnswerParser:
    """Feed it the text of one choice, then finish; the events of every step are in the order of the text.

    `hold_reasoning` gives thinking out in one piece, once it has ended. `never_empty` gives the thinking out as
    content too, at the very end, when there is no other content and no call.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None = None,
        tools: Machine | None = None,
        hold_reasoning: bool = False,
        never_empty: bool = False,
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._hold = hold_reasoning
        self._held: list[Event] = []
        self._never_empty = never_empty
        self._thoughts: list[str] = []
        self._answered = False

    @property
    def spans(self) -> Sequence[tuple[int, int | None]]:
        """The ranges of the text, in characters, that are thinking."""
        return self._reasoning.spans if self._reasoning is not None else ()

    def feed(self, text: str) -> list[Event]:
        """What has become certain by `text`."""
        if self._reasoning is None:
            return self._released(self._called([Content(text)]))
        return self._released(self._called(self._reasoning.feed(text)))

    def finish(self) -> list[Event]:
        """What is left when no more text comes."""
        events = self._called(self._reasoning.finish() if self._reasoning is not None else [])
        if self._tools is not None:
            events += self._tools.finish()
        events = [*self._released(events), *self._held]
        self._held = []
        if self._never_empty and not self._answered and self._thoughts:
            events.append(Content("".join(self._thoughts)))
        return merged(events)

    def _called(self, events: Iterable[Event]) -> list[Event]:
        """Content goes through the tool-call parser."""
        if self._tools is None:
            return list(events)
        result: list[Event] = []
        for event in events:
            result += self._tools.feed(event.text) if isinstance(event, Content) else [event]
        return result

    def _released(self, events: list[Event]) -> list[Event]:
        """Note what there was, and hold thinking back where asked to."""
        result: list[Event] = []
        for event in events:
            if isinstance(event, Reasoning):
                if self._never_empty:
                    self._thoughts.append(event.text)
                (self._held if self._hold else result).append(event)
                continue
            self._answered = self._answered or not isinstance(event, Content) or bool(event.text.strip())
            result += [*self._held, event]
            self._held = []
        return merged(result)

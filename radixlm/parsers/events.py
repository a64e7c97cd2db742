"""What a parser says of an answer's text: content, reasoning, and tool calls that only grow. Knows no format."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolOpen:
    """A call begins. `index` counts the answer's calls from 0; `id` is the model's own name for the call, if any."""

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """More of the argument text of call `index`; joined, the pieces are JSON as far as the model wrote it."""

    index: int
    text: str


Event = Content | Reasoning | ToolOpen | ToolArguments


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbours of one kind joined."""
    result: list[Event] = []
    parts: list[str] = []
    last: Event | None = None
    for event in events:
        if isinstance(event, ToolOpen):
            _flush(result, last, parts)
            last = None
            result.append(event)
            continue
        if last is None or type(event) is not type(last) or _index(event) != _index(last):
            _flush(result, last, parts)
            last = event
        parts.append(event.text)
    _flush(result, last, parts)
    return result


def _index(event: Event) -> int:
    return event.index if isinstance(event, ToolArguments) else 0


def _flush(result: list[Event], kind: Event | None, parts: list[str]) -> None:
    text = "".join(parts)
    parts.clear()
    if not text:
        return
    if isinstance(kind, ToolArguments):
        result.append(ToolArguments(kind.index, text))
    else:
        result.append(Reasoning(text) if isinstance(kind, Reasoning) else Content(text))


def is_whole(arguments: str) -> bool:
    """Whether the argument text of a call is all of it, and not cut off."""
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return True


@dataclass
class Call:
    """One tool call so far."""

    name: str
    id: str | None = None
    arguments: str = ""


@dataclass
class Answer:
    """Events summed up: what they say of the whole answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Content):
                self.content += event.text
            elif isinstance(event, Reasoning):
                self.reasoning += event.text
            elif isinstance(event, ToolOpen):
                self.calls.append(Call(event.name, event.id))
            else:
                self.calls[event.index].arguments += event.text

"""The output items of one response as they grow: thinking, messages, function calls. Knows no request and no status."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from radixlm.parsers.events import Content, Event, Reasoning, ToolArguments, ToolOpen
from radixlm.server.openai.logprobs import Entry

Told = tuple[str, dict[str, Any]]  # an event's name without "response." and its content

_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


@dataclass
class Item:
    """One item. `name` and `call_id` belong to function calls; `text` is a call's arguments.

    `logprobs` of a message are known once the answer has ended.
    """

    type: str
    id: str
    index: int
    name: str = ""
    call_id: str = ""
    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    def json(self, status: str, begun: bool = True) -> dict[str, Any]:
        """The item; `begun` False while it has no content part yet."""
        head = {"id": self.id, "type": self.type, "status": status}
        if self.type == "function_call":
            return {**head, "call_id": self.call_id, "name": self.name, "arguments": self.text}
        content = [self.part()] if begun else []
        if self.type == "reasoning":
            return {**head, "summary": [], "content": content}
        return {**head, "role": "assistant", "content": content}

    def part(self) -> dict[str, Any]:
        """The one content part of a message or of thinking."""
        part: dict[str, Any] = {"type": _PARTS[self.type], "text": self.text}
        return {**part, "annotations": [], **self._logprobs()} if self.type == "message" else part

    def opened(self) -> Iterator[Told]:
        yield "output_item.added", {"output_index": self.index, "item": self.json("in_progress", begun=False)}
        if self.type in _PARTS:
            yield "content_part.added", {**self._place(), "part": self.part()}

    def grown(self, text: str) -> Iterator[Told]:
        self.text += text
        yield f"{self._stream()}.delta", {**self._place(), "delta": text, **self._logprobs()}

    def closed(self, status: str) -> Iterator[Told]:
        if self.type == "function_call":
            yield f"{self._stream()}.done", {**self._place(), "name": self.name, "arguments": self.text}
        else:
            yield f"{self._stream()}.done", {**self._place(), "text": self.text, **self._logprobs()}
            yield "content_part.done", {**self._place(), "part": self.part()}
        yield "output_item.done", {"output_index": self.index, "item": self.json(status)}

    def _stream(self) -> str:
        return _PARTS.get(self.type, "function_call_arguments")

    def _logprobs(self) -> dict[str, Any]:
        """Messages have a place for them, thinking has none."""
        return {"logprobs": self.logprobs} if self.type == "message" else {}

    def _place(self) -> dict[str, Any]:
        place = {"item_id": self.id, "output_index": self.index}
        return place if self.type == "function_call" else {**place, "content_index": 0}


class Output:
    """All items so far; the last one is open until another begins or `close`."""

    def __init__(self) -> None:
        self.items: list[Item] = []

    def take(self, events: Iterable[Event]) -> Iterator[Told]:
        """Add what was said; yields what a stream tells of it."""
        for event in events:
            if isinstance(event, ToolOpen):
                identity = uuid.uuid4().hex
                call_id = event.id or f"call_{identity[:24]}"
                yield from self._open(Item("function_call", f"fc_{identity[:8]}", len(self.items), event.name, call_id))
                continue
            if not isinstance(event, ToolArguments):
                yield from self._ready_for(event)
            yield from self.items[-1].grown(event.text)

    def close(self, completed: bool) -> Iterator[Told]:
        """Nothing more is said. An answer that said nothing has one empty message."""
        if not self.items:
            yield from self._ready_for(Content(""))
        yield from self.items[-1].closed("completed" if completed else "incomplete")

    def score(self, text: str, entries: Sequence[Entry]) -> None:
        """Give each message the log probabilities of its tokens; `entries` are those of the whole answer, `text`."""
        at = 0
        for item in self.items:
            found = text.find(item.text, at) if item.type == "message" and item.text else -1
            if found >= 0:
                at = found + len(item.text)
                item.logprobs = [entry.json for entry in entries if entry.begin < at and entry.end > found]

    def json(self, completed: bool) -> list[dict[str, Any]]:
        last = "completed" if completed else "incomplete"
        return [item.json("completed" if item is not self.items[-1] else last) for item in self.items]

    def turn(self) -> dict[str, Any]:
        """The assistant's chat message that these items make."""
        content = "".join(item.text for item in self.items if item.type == "message")
        calls = [
            {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.text}}
            for item in self.items
            if item.type == "function_call"
        ]
        turn: dict[str, Any] = {"role": "assistant", "content": content}
        return {**turn, "tool_calls": calls} if calls else turn

    def _ready_for(self, event: Content | Reasoning) -> Iterator[Told]:
        """Begin an item for this text, unless the last one is of its kind."""
        kind, prefix = ("reasoning", "rs") if isinstance(event, Reasoning) else ("message", "msg")
        if not self.items or self.items[-1].type != kind:
            yield from self._open(Item(kind, f"{prefix}_{uuid.uuid4().hex}", len(self.items)))

    def _open(self, item: Item) -> Iterator[Told]:
        if self.items:
            yield from self.items[-1].closed("completed")
        self.items.append(item)
        yield from item.opened()

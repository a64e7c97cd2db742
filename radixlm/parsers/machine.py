"""The one interface of reasoning and tool-call parsers: text in, events out, both for streams and whole answers."""

from radixlm.parsers.events import Content, Event, merged
from radixlm.parsers.reader import EndOfText, Read, Reader


class Machine:
    """An incremental parser. Feed it the text in any pieces, then finish; the events joined do not depend on the cuts.

    A format is a subclass whose `parse` reads `self.reader` and calls `self.emit`. Nothing is ever taken back.
    """

    def __init__(self) -> None:
        self.reader = Reader()
        self._events: list[Event] = []
        self._parsing: Read[None] | None = self._run()

    def feed(self, text: str) -> list[Event]:
        """What has become certain by `text`."""
        self.reader.push(text)
        return self._advance()

    def finish(self) -> list[Event]:
        """What is left when no more text comes."""
        self.reader.end()
        return self._advance()

    def parse(self) -> Read[None]:
        """Read all of the text; EndOfText may end it anywhere."""
        return self.reader.rest(self.say)

    def close(self) -> None:
        """The text has ended: hand on what was kept because it might have become a tag."""
        self.say(self.reader.leave())

    def say(self, text: str) -> None:
        """Text of the answer."""
        self.emit(Content(text))

    def emit(self, event: Event) -> None:
        self._events.append(event)

    def _run(self) -> Read[None]:
        try:
            yield from self.parse()
            yield from self.reader.rest(self.say)
        except EndOfText:
            self.close()

    def _advance(self) -> list[Event]:
        if self._parsing is not None:
            try:
                next(self._parsing)
            except StopIteration:
                self._parsing = None
        events, self._events = self._events, []
        return merged(events)

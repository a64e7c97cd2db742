"""The events of a streamed response, and the answer without a stream. Knows no request field and no store."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from radixlm.frontend.choice import Update
from radixlm.parsers.pipeline import AnswerParser
from radixlm.server.generation import Transcript
from radixlm.server.openai.responses.output import Told
from radixlm.server.openai.responses.reply import Reply
from radixlm.server.parsing import Parsers


class ResponseView:
    """`ended` is called once, with the final reply."""

    def __init__(self, reply: Reply, parsers: Parsers, ended: Callable[[Reply], None]) -> None:
        self._reply = reply
        self._parsers = parsers
        self._answer = parsers.begin()
        self._ended = ended
        self._number = 0

    def events(self, transcript: Transcript, update: Update) -> Iterator[Any]:
        if not self._number:
            yield self._event("created", {"response": self._reply.json()})
            yield self._event("in_progress", {"response": self._reply.json()})
        yield from self._told(self._reply.output.take(self._answer.feed(update.text)))

    def closing(self, transcripts: Sequence[Transcript]) -> Iterator[Any]:
        reply, reason = self._reply, transcripts[0].reason
        yield from self._told(reply.output.take(self._answer.finish()))
        reply.score(transcripts[0])
        yield from self._told(reply.output.close(reason is not None and reason.type == "stop"))
        reply.take(transcripts[0], _reasoning_tokens(self._parsers, self._answer, transcripts[0]))
        self._ended(reply)
        yield self._event(reply.status, {"response": reply.json()})

    def whole(self, transcripts: Sequence[Transcript]) -> Any:
        fill(self._reply, self._parsers, transcripts[0])
        self._ended(self._reply)
        return self._reply.json()

    def _told(self, told: Iterable[Told]) -> Iterator[Any]:
        for kind, content in told:
            yield self._event(kind, content)

    def _event(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        number = self._number
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": number, **content}


def fill(reply: Reply, parsers: Parsers, transcript: Transcript, cancelled: bool = False) -> None:
    """Put all that an ended choice said into its reply, at once."""
    answer = parsers.begin()
    _exhaust(reply.output.take([*answer.feed(transcript.text), *answer.finish()]))
    reply.score(transcript)
    _exhaust(reply.output.close(True))
    reply.take(transcript, _reasoning_tokens(parsers, answer, transcript), cancelled)


def _exhaust(told: Iterable[Told]) -> None:
    """Nobody listens: only what it does to the output counts."""
    for _ in told:
        pass


def _reasoning_tokens(parsers: Parsers, answer: AnswerParser, transcript: Transcript) -> int:
    counter = parsers.counter()
    if counter is None:
        return 0
    counter.feed(transcript.token_ids)
    return counter.count(answer.spans)

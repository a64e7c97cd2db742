"""Prompts tokenized by processes of their own, seen from the process that asks. Starts none and watches none.

Each worker has its own queue, and a text goes where the least is outstanding: one long prompt does not hold up others.
A prompt that comes while nothing else is being tokenized saves itself the way: it is done here, in a thread.
"""

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from radixlm.base.errors import RadixError, RequestError
from radixlm.frontend.prompts import LocalPrompts, check_unicode
from radixlm.protocol.arrays import I32
from radixlm.protocol.messages import Message, TokenizeReply, TokenizeReq
from radixlm.protocol.wire import Addresses, LoopReceiver, Sender

INLINE_CHARS = 256  # up to this, tokenizing here costs less than asking another process
_MESSAGE_CHARS = 16384  # a batch of prompts is cut into messages of about this size


@dataclass
class _Call:
    """A message that a worker has not answered yet."""

    worker: int
    chars: int
    answer: asyncio.Future[TokenizeReply]


@dataclass
class _Part:
    """The texts of one message, and where they belong in the batch."""

    places: list[int] = field(default_factory=list)
    chars: int = 0


class TokenizerPool:
    """`workers` tokenizer processes that listen at `addresses`. `run` takes their answers."""

    def __init__(self, addresses: Addresses, workers: int, local: LocalPrompts) -> None:
        """Bind what the workers answer to; call it before they start. `local` does what is short or comes alone."""
        self._local = local
        self._thread = ThreadPoolExecutor(1, "tokenizer")
        self._here: Future[list[I32]] | None = None  # the thread's last prompt, whether or not one still waits for it
        self._senders = [Sender(addresses.tokenize(worker)) for worker in range(workers)]
        self._answers = LoopReceiver(addresses.tokenized)
        self._outstanding_chars = [0] * workers
        self._numbers = itertools.count()
        self._calls: dict[int, _Call] = {}
        self._fatal: str | None = None

    async def encode(self, texts: Sequence[str], special: Sequence[bool]) -> list[I32]:
        if sum(map(len, texts)) <= INLINE_CHARS:
            return self._local.encode_now(texts, special)
        for text in texts:
            check_unicode(text)
        if self._fatal is not None:
            raise RequestError(self._fatal, status=500)
        if len(texts) == 1 and not self._calls and (self._here is None or self._here.done()):
            self._here = self._thread.submit(self._local.encode_now, texts, special)
            return await _answer(self._here)
        parts = _parts(texts)
        answers = await asyncio.gather(*(self._part(part, texts, special) for part in parts))
        ids: list[I32] = [np.empty(0, np.int32)] * len(texts)
        for part, arrays in zip(parts, answers, strict=True):
            for place, array in zip(part.places, arrays, strict=True):
                ids[place] = array
        return ids

    async def ready(self) -> None:
        """Wait until every worker answers."""
        await asyncio.gather(*(self._ask(worker, [""], [False]) for worker in range(len(self._senders))))

    async def _part(self, part: _Part, texts: Sequence[str], special: Sequence[bool]) -> list[I32]:
        idlest = self._outstanding_chars.index(min(self._outstanding_chars))
        places = part.places
        reply = await self._ask(idlest, [texts[place] for place in places], [special[place] for place in places])
        if reply.error is not None:
            raise _unfit(reply.error)
        return np.split(reply.tokens, np.cumsum(reply.counts)[:-1])

    async def _ask(self, worker: int, texts: list[str], special: list[bool]) -> TokenizeReply:
        number, chars = next(self._numbers), sum(map(len, texts))
        call = _Call(worker, chars, asyncio.get_running_loop().create_future())
        self._calls[number] = call
        self._outstanding_chars[worker] += chars
        self._senders[worker].send(TokenizeReq(number, texts, special))
        return await call.answer

    async def run(self) -> None:
        """Take answers until cancelled."""
        while True:
            for message in await self._answers.receive():
                self._take(message)

    def _take(self, message: Message) -> None:
        assert isinstance(message, TokenizeReply)
        call = self._calls.pop(message.call)
        self._outstanding_chars[call.worker] -= call.chars
        if not call.answer.done():
            call.answer.set_result(message)

    def fail(self, message: str) -> None:
        self._fatal = message
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(RequestError(message, status=500))

    def close(self) -> None:
        self._thread.shutdown(wait=False)
        for sender in self._senders:
            sender.close()
        self._answers.close()


async def _answer(work: Future[list[I32]]) -> list[I32]:
    try:
        return await asyncio.wrap_future(work)
    except RequestError:
        raise
    except Exception as error:
        raise _unfit(f"{type(error).__name__}: {error}") from error


def _unfit(reason: str) -> RadixError:
    return RadixError(f"a prompt could not be tokenized: {reason}")


def _parts(texts: Sequence[str]) -> list[_Part]:
    """The texts of a batch, neighbours together up to _MESSAGE_CHARS."""
    parts = [_Part()]
    for place, text in enumerate(texts):
        if parts[-1].places and parts[-1].chars + len(text) > _MESSAGE_CHARS:
            parts.append(_Part())
        parts[-1].places.append(place)
        parts[-1].chars += len(text)
    return parts

"""Sockets between the processes of one server: ZMQ over unix sockets in a private directory. Knows no role.

One address per direction; the HTTP process binds them all and the others connect:
`scheduler` (to the scheduler), `detokenizer` (scheduler to detokenizer), `tokenizer` (to the tokenizer manager);
`tokenize` (to one tokenizer worker) and `tokenized` (from all of them).
"""

import asyncio
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import zmq

from radixlm.protocol.messages import FromScheduler, Message, ToScheduler, decode, encode

PREFIX = "radixlm-"


@dataclass(frozen=True)
class Addresses:
    """The socket addresses of one server. `directory` is readable by its owner only."""

    directory: str

    @staticmethod
    def create() -> "Addresses":
        """A new directory, named after this process; those of processes that are gone (kill -9) are cleared away."""
        for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
            owner = left.name.removeprefix(PREFIX).partition("-")[0]
            if owner.isdigit() and not psutil.pid_exists(int(owner)):
                shutil.rmtree(left, ignore_errors=True)
        return Addresses(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))

    @property
    def scheduler(self) -> str:
        return f"ipc://{self.directory}/scheduler"

    @property
    def detokenizer(self) -> str:
        return f"ipc://{self.directory}/detokenizer"

    @property
    def tokenizer(self) -> str:
        return f"ipc://{self.directory}/tokenizer"

    @property
    def tokenized(self) -> str:
        return f"ipc://{self.directory}/tokenized"

    def tokenize(self, worker: int) -> str:
        return f"ipc://{self.directory}/tokenize-{worker}"

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


class Link(Protocol):
    """The tokenizer manager's two-way connection to the scheduler (through the detokenizer, where it is apart)."""

    def send(self, message: ToScheduler) -> bool:
        """Queue a message; never blocks, and drops it when the scheduler is gone."""

    async def receive(self) -> list[FromScheduler]:
        """Everything that has arrived, in order; waits for a first message."""

    def close(self) -> None: ...


def _unbounded(socket: "zmq.Socket[bytes]") -> None:
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)


class Sender:
    """The pushing end of one direction, for synchronous code."""

    def __init__(self, address: str, bind: bool = False) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        _unbounded(self._socket)
        (self._socket.bind if bind else self._socket.connect)(address)

    def send(self, message: Message) -> bool:
        """Queue a message; False when this end is closed, or binds and has no peer, which would block for ever."""
        if self._socket.closed:
            return False
        try:
            self._socket.send(encode(message), zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    def close(self, linger_ms: int = 0) -> None:
        self._socket.close(linger=linger_ms)


class Receiver:
    """The pulling end of one direction, for synchronous code."""

    def __init__(self, address: str, bind: bool = False) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        _unbounded(self._socket)
        (self._socket.bind if bind else self._socket.connect)(address)

    def drain(self, timeout_s: float = 0.0) -> list[Message]:
        """Everything that has arrived; waits up to `timeout_s` for a first message."""
        messages: list[Message] = []
        if timeout_s > 0 and not self._socket.poll(int(timeout_s * 1000)):
            return messages
        while True:
            try:
                messages.append(decode(self._socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return messages

    def fileno(self) -> int:
        """Readable when something may have arrived since `drain` last came to its end."""
        return int(self._socket.getsockopt(zmq.FD))

    def close(self) -> None:
        self._socket.close()


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


class LoopReceiver:
    """The pulling end of one direction, for one task on an event loop. Binds its address."""

    def __init__(self, address: str) -> None:
        self._receiver = Receiver(address, bind=True)

    async def receive(self) -> list[Message]:
        """Everything that has arrived, in order; waits for a first message."""
        # The descriptor tells of changes only: it may be waited for after a drain that found nothing, not before.
        while not (messages := self._receiver.drain()):
            loop, descriptor = asyncio.get_running_loop(), self._receiver.fileno()
            readable = loop.create_future()
            loop.add_reader(descriptor, _wake, readable)
            try:
                await readable
            finally:
                loop.remove_reader(descriptor)
        return messages

    def close(self) -> None:
        self._receiver.close()


class ServerLink:
    """A Link over the server's sockets; binds all addresses, so it is made before the other processes start."""

    def __init__(self, addresses: Addresses) -> None:
        self._out = Sender(addresses.scheduler, bind=True)
        self._in = LoopReceiver(addresses.tokenizer)

    def send(self, message: ToScheduler) -> bool:
        return self._out.send(message)

    async def receive(self) -> list[FromScheduler]:
        return [message for message in await self._in.receive() if isinstance(message, FromScheduler)]

    def close(self) -> None:
        self._out.close(linger_ms=200)
        self._in.close()

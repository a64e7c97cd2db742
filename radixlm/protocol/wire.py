"""Sockets between the processes of one server: ZMQ over unix sockets in a private directory. Knows no role.

One address per direction; the HTTP process binds them all and the others connect:
`scheduler` (to the scheduler), `detokenizer` (scheduler to detokenizer), `tokenizer` (to the tokenizer manager).
"""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import zmq
import zmq.asyncio

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

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


class Link(Protocol):
    """The tokenizer manager's two-way connection to the scheduler (through the detokenizer, where it is apart)."""

    def send(self, message: ToScheduler) -> bool:
        """Queue a message; never blocks, and drops it when the scheduler is gone."""

    async def receive(self) -> FromScheduler:
        """The next message."""

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

    def close(self) -> None:
        self._socket.close()


class ServerLink:
    """A Link over the server's sockets; binds all addresses, so it is made before the other processes start."""

    def __init__(self, addresses: Addresses) -> None:
        self._out = Sender(addresses.scheduler, bind=True)
        context = zmq.asyncio.Context.instance()
        self._in = context.socket(zmq.PULL)
        self._in.setsockopt(zmq.RCVHWM, 0)
        self._in.setsockopt(zmq.LINGER, 0)
        self._in.bind(addresses.tokenizer)

    def send(self, message: ToScheduler) -> bool:
        return self._out.send(message)

    async def receive(self) -> FromScheduler:
        message = decode(await self._in.recv())
        assert isinstance(message, FromScheduler)
        return message

    def close(self) -> None:
        self._out.close(linger_ms=200)
        self._in.close()

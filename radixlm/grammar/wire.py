"""The bytes between a compiling service and its trial process: length, then msgpack. Knows no backend."""

import os
import select
import time
from typing import Literal

import msgspec

from radixlm.grammar.base import Source, Vocabulary

MOST_FRAME_BYTES = 1 << 28


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First to the process: the vocabulary."""

    texts: list[bytes]
    stop_ids: tuple[int, ...]
    size: int

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.texts, self.stop_ids, self.size)


class Try(msgspec.Struct, frozen=True, tag=True):
    """Compile this with the backend of that name, and walk a little way, within so much processor and wall time."""

    backend: str
    source: Source
    cpu_s: float
    wall_s: float


class Warm(msgspec.Struct, frozen=True, tag=True):
    """Make the backend of that name ready: its library loaded, the vocabulary read."""

    backend: str


Verdict = Literal["good", "bad", "unsupported", "too heavy", "too late"]


class Outcome(msgspec.Struct, frozen=True):
    """What became of an order; `error` says why it is not good."""

    verdict: Verdict = "good"
    error: str = ""


Order = Hello | Try | Warm


def encode(message: Order | Outcome) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "little") + body


def write(descriptor: int, data: bytes) -> None:
    """All of `data`; OSError when nobody reads."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read(descriptor: int, deadline_s: float | None = None) -> bytes:
    """The next frame's body. EOFError at the end; TimeoutError when it is not there by `deadline_s` (monotonic)."""
    size = int.from_bytes(_exactly(descriptor, 4, deadline_s), "little")
    if size > MOST_FRAME_BYTES:
        raise EOFError(f"a frame of {size} bytes")
    return _exactly(descriptor, size, deadline_s)


def _exactly(descriptor: int, size: int, deadline_s: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        if deadline_s is not None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                raise TimeoutError
        piece = os.read(descriptor, size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)

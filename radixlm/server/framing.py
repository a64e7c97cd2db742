"""How a stream is cut into messages: server-sent events, with or without names, or lines of JSON. Knows no route."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

encode_json = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Framing:
    """One kind of stream: its content type, the bytes of one message, and those that end it."""

    content_type: bytes
    message: Callable[[Any], bytes]
    end: bytes


def _event(content: Any) -> bytes:
    return b"data: " + encode_json(content) + b"\n\n"


def _named_event(content: Any) -> bytes:
    """An event whose name is the `type` of its content."""
    return b"event: " + str(content["type"]).encode() + b"\ndata: " + encode_json(content) + b"\n\n"


def _line(content: Any) -> bytes:
    return encode_json(content) + b"\n"


_EVENT_STREAM = b"text/event-stream; charset=utf-8"
EVENTS = Framing(_EVENT_STREAM, _event, b"data: [DONE]\n\n")
NAMED_EVENTS = Framing(_EVENT_STREAM, _named_event, b"")
LINES = Framing(b"application/x-ndjson", _line, b"")

"""What `--kv-events-config` holds: where and how the feed of cached blocks is published, under SGLang's keys."""

from typing import Annotated, Literal

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An endpoint with `*`, and every ipc or inproc one, is bound; others are connected to.

    buffer_steps: how many batches are kept for replay. hwm: how many batches are queued for a slow subscriber before
    some are lost to it. max_queue_size: how many events may wait to be published; beyond that new blocks are not told.
    """

    publisher: Literal["null", "zmq"] = "null"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: Positive = 10_000
    hwm: Positive = 100_000
    max_queue_size: Positive = 100_000
    topic: str = ""


def kv_events_text(word: str) -> str:
    """The JSON text of a KvEventsConfig, checked and kept as text; ValueError when it is not one."""
    try:
        msgspec.json.decode(word, type=KvEventsConfig)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    return word


def kv_events(text: str | None) -> KvEventsConfig | None:
    """The settings of a feed, or None when there is to be none."""
    config = msgspec.json.decode(text, type=KvEventsConfig) if text is not None else None
    return None if config is None or config.publisher == "null" else config

"""Publishes what the cache holds, from a thread of its own: the loop only queues arrays. Knows no tree or request."""

import queue
import threading
import time
from collections import deque
from typing import NamedTuple

import zmq

from radixlm.base import log
from radixlm.base.errors import ConfigError
from radixlm.config.kv_events import KvEventsConfig
from radixlm.protocol.arrays import I32
from radixlm.protocol.kv_events import (
    END_OF_REPLAY,
    MEDIUM,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KvEvent,
    block_hash,
    chain,
    encode_batch,
    seed_of,
)
from radixlm.protocol.messages import CacheNamespace

logger = log.get(__name__)
MOST_EVENTS = 256  # of one batch
CLOSE_S = 1.0  # how long closing waits for what is queued
REPLAY_POLL_MS = 500


class Stored(NamedTuple):
    """As in CacheFeed.stored; `tokens` are the raw bytes of int32."""

    namespace: CacheNamespace
    weight_version: str
    parent: int
    tokens: bytes
    pages: list[int]


class Removed(NamedTuple):
    """As in CacheFeed.removed."""

    pages: list[int]


class Cleared(NamedTuple):
    """As CacheFeed.cleared."""


Change = Stored | Removed | Cleared


class Blocks:
    """Turns changes of pages into events of hashes. A block is never spoken of when its storing, or that of one before
    it, is left out.

    `digests` has the digest of the block in each page that subscribers know.
    """

    def __init__(self, page_size: int) -> None:
        self.digests: dict[int, bytes] = {}
        self._page_size = page_size

    def event(self, change: Change) -> KvEvent | None:
        match change:
            case Stored():
                return self._stored(change)
            case Removed():
                known = [self.digests.pop(page) for page in change.pages if page in self.digests]
                return BlockRemoved([block_hash(digest) for digest in known], MEDIUM) if known else None
            case Cleared():
                self.digests.clear()
                return AllBlocksCleared()

    def _stored(self, change: Stored) -> KvEvent | None:
        before: bytes | None = seed_of(change.namespace, change.weight_version)
        parent = None
        if change.parent:
            before = self.digests.get(change.parent)
            if before is None:
                return None
            parent = block_hash(before)
        assert before is not None
        digests = chain(before, change.tokens, self._page_size * 4)
        self.digests.update(zip(change.pages, digests, strict=True))
        return BlockStored(
            [block_hash(digest) for digest in digests],
            parent,
            memoryview(change.tokens).cast("i").tolist(),
            self._page_size,
            None,
            MEDIUM,
            change.namespace.cache_salt or None,
        )


class KvEventPublisher:
    """A CacheFeed that publishes over ZMQ. `dropped_events` counts blocks that were not told because of a full queue.

    Then subscribers know less than is cached, never more.
    """

    def __init__(self, config: KvEventsConfig, page_size: int) -> None:
        """ConfigError when an endpoint cannot be used."""
        self.dropped_events = 0
        self._config = config
        self._blocks = Blocks(page_size)
        self._changes: queue.SimpleQueue[Change | None] = queue.SimpleQueue()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._kept_lock = threading.Lock()
        self._closing = threading.Event()
        self._pub = _open(zmq.PUB, config.endpoint, config.hwm)
        self._threads = [threading.Thread(target=self._publish, name="kv-events", daemon=True)]
        if config.replay_endpoint is not None:
            router = _open(zmq.ROUTER, config.replay_endpoint, 0)
            self._threads.append(
                threading.Thread(target=self._replay, args=(router,), name="kv-events-replay", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    # ---- CacheFeed: the loop's side --------------------------------------------------------------------------------

    def stored(self, namespace: CacheNamespace, weight_version: str, parent: int, tokens: I32, pages: I32) -> None:
        if self._changes.qsize() >= self._config.max_queue_size:
            self.dropped_events += 1
            return
        self._changes.put(Stored(namespace, weight_version, parent, tokens.tobytes(), pages.tolist()))

    def removed(self, pages: I32) -> None:
        self._changes.put(Removed(pages.tolist()))

    def cleared(self) -> None:
        self._changes.put(Cleared())

    def close(self) -> None:
        """Publish what is queued, for at most CLOSE_S seconds, and end."""
        self._closing.set()
        self._changes.put(None)
        for thread in self._threads:
            thread.join(CLOSE_S)

    # ---- the threads' side -----------------------------------------------------------------------------------------

    def _publish(self) -> None:
        topic = self._config.topic.encode()
        sequence, told, running = 0, 0, True
        while running:
            changes: list[Change | None] = [self._changes.get()]
            while len(changes) < MOST_EVENTS and not self._changes.empty():
                changes.append(self._changes.get())
            running = None not in changes
            events = [e for change in changes if change is not None and (e := self._blocks.event(change)) is not None]
            if events:
                number, payload = sequence.to_bytes(8, "big"), encode_batch(EventBatch(time.time(), events, 0))
                sequence += 1
                with self._kept_lock:
                    self._kept.append((number, payload))
                self._pub.send_multipart((topic, number, payload))
            if self.dropped_events > told:
                told = self.dropped_events
                logger.warning("KV events: %d stored runs of blocks were not told: the queue was full", told)
        self._pub.close(linger=int(CLOSE_S * 1000))

    def _replay(self, router: "zmq.Socket[bytes]") -> None:
        while not self._closing.is_set():
            if not router.poll(REPLAY_POLL_MS):
                continue
            frames = router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                logger.warning("KV events: a replay request is one frame of 8 bytes")
                continue
            client, _, start = frames
            with self._kept_lock:
                batches = [batch for batch in self._kept if batch[0] >= start]
            for number, payload in (*batches, (END_OF_REPLAY, b"")):
                router.send_multipart((client, b"", number, payload))
        router.close(linger=0)


def _open(kind: int, endpoint: str, high_water_mark: int) -> "zmq.Socket[bytes]":
    """A socket that is bound where the endpoint is a wildcard or local, as in SGLang; a ROUTER always is."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.set_hwm(high_water_mark)
    binds = kind == zmq.ROUTER or "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))
    try:
        (socket.bind if binds else socket.connect)(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise ConfigError(f"--kv-events-config: {endpoint}: {error}") from None
    return socket

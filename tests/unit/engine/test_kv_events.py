"""A subscriber of the KV event feed knows what is cached: all of it, and after a full queue a part, never more."""

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from radixlm.base.errors import ConfigError
from radixlm.cache.manager import CacheManager
from radixlm.config.groups import Config
from radixlm.config.kv_events import KvEventsConfig, kv_events
from radixlm.engine.kv_events import Blocks, KvEventPublisher, Removed, Stored
from radixlm.protocol.arrays import I32
from radixlm.protocol.kv_events import (
    END_OF_REPLAY,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KvEvent,
    block_hash,
    chain,
    decode_batch,
    encode_batch,
    seed_of,
)
from radixlm.protocol.messages import CacheNamespace
from tests.sim.drive import Setup, World
from tests.sim.test_random import workload

PAGE = 4


class Mirror:
    """What a subscriber knows: the parent and the tokens of each block, by its hash."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int | None, list[int]]] = {}

    def take(self, event: KvEvent) -> None:
        match event:
            case BlockStored():
                parent = event.parent_block_hash
                assert parent is None or parent in self.blocks, "a block without its parent"
                for index, value in enumerate(event.block_hashes):
                    tokens = event.token_ids[index * event.block_size : (index + 1) * event.block_size]
                    assert value not in self.blocks, "stored twice"
                    self.blocks[value] = (parent, tokens)
                    parent = value
            case BlockRemoved():
                for value in event.block_hashes:
                    del self.blocks[value]
            case AllBlocksCleared():
                self.blocks.clear()


def truth(cache: CacheManager) -> dict[int, tuple[int | None, list[int]]]:
    """The same, from the tree itself."""
    found: dict[int, tuple[int | None, list[int]]] = {}
    ends: dict[int, tuple[bytes, int | None]] = {}
    for node in cache._tree.walk():
        if node.parent is cache._tree.root:
            before, parent = seed_of(*node.edge[0]), None  # type: ignore[index]
        else:
            before, parent = ends[id(node.parent)]
        for index, digest in enumerate(chain(before, node.tokens, PAGE * 4)):
            tokens = np.frombuffer(node.tokens, np.int32)[index * PAGE : (index + 1) * PAGE].tolist()
            found[block_hash(digest)] = (parent, tokens)
            parent = block_hash(digest)
        ends[id(node)] = (digest, parent)
    return found


@pytest.fixture
def endpoints(tmp_path: Path) -> Iterator[tuple[str, str]]:
    yield f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"


def busy_world(feed: KvEventPublisher) -> World:
    """A world in the midst of a workload that shares, evicts and retracts."""
    world = World(Setup(num_pages=48, page_size=PAGE, slots=6, conservativeness=0.05, feed=feed))
    jobs = workload(random.Random(3), 80, 140, 0.5)
    for turn in range(150):
        world.turn([job.message(key) for key, job in enumerate(jobs) if job.arrival == turn])
    assert world.cache.evicted_tokens > 0
    return world


def received(subscriber: "zmq.Socket[bytes]") -> list[tuple[int, EventBatch]]:
    batches = []
    while subscriber.poll(300):
        topic, number, payload = subscriber.recv_multipart()
        assert topic == b"kv@here"
        batches.append((int.from_bytes(number, "big"), decode_batch(payload)))
    return batches


def test_a_subscriber_mirrors_the_tree(endpoints: tuple[str, str]) -> None:
    feed = KvEventPublisher(KvEventsConfig("zmq", *endpoints, topic="kv@here"), PAGE)
    context = zmq.Context.instance()
    subscriber, asker = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    subscriber.connect(endpoints[0])
    subscriber.subscribe(b"kv@")
    while not subscriber.poll(20):  # until the subscription has arrived
        feed.cleared()
    world = busy_world(feed)
    batches, mirror = received(subscriber), Mirror()
    for _, batch in batches:
        for event in batch.events:
            mirror.take(event)
    assert len(mirror.blocks) > 10 and mirror.blocks == truth(world.cache)
    numbers = [number for number, _ in batches]
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "a batch was lost"

    asker.connect(endpoints[1])
    asker.send_multipart((b"", numbers[-3].to_bytes(8, "big")))
    replayed = []
    while not replayed or replayed[-1][1] != END_OF_REPLAY:
        assert asker.poll(2000)
        replayed.append(asker.recv_multipart())
    assert [decode_batch(payload) for _, _, payload in replayed[:-1]] == [batch for _, batch in batches[-3:]]
    feed.close()
    subscriber.close()
    asker.close(linger=0)


class Forgetful(KvEventPublisher):
    """Writes events down in place of publishing them, and finds its queue full every third time something is stored."""

    def __init__(self) -> None:
        self.calls = 0
        self.blocks = Blocks(PAGE)
        self.mirror = Mirror()

    def stored(self, namespace: CacheNamespace, weight_version: str, parent: int, tokens: I32, pages: I32) -> None:
        self.calls += 1
        if self.calls % 3:
            self.take(Stored(namespace, weight_version, parent, tokens.tobytes(), pages.tolist()))

    def removed(self, pages: I32) -> None:
        self.take(Removed(pages.tolist()))

    def take(self, change: Stored | Removed) -> None:
        event = self.blocks.event(change)
        if event is not None:
            self.mirror.take(event)


def test_a_full_queue_loses_blocks_but_tells_nothing_wrong() -> None:
    feed = Forgetful()
    world = busy_world(feed)
    known, cached = feed.mirror.blocks, truth(world.cache)
    assert 0 < len(known) < len(cached) and known.items() <= cached.items()


def test_spaces_and_positions_tell_blocks_apart() -> None:
    plain, salted = CacheNamespace(), CacheNamespace(cache_salt="a")
    block = np.arange(4, dtype=np.int32).tobytes()
    seeds = {seed_of(plain, "default"), seed_of(salted, "default"), seed_of(plain, "v2")}
    assert len(seeds) == 3
    once, twice = chain(b"", block * 2, 16)
    assert once != twice and chain(once, block, 16) == [twice]


def test_the_encoding_is_a_tagged_map_in_an_array() -> None:
    batch = EventBatch(1.5, [BlockStored([7], None, [1, 2], 2, None, "GPU"), BlockRemoved([7]), AllBlocksCleared()], 0)
    stored = {"type": "BlockStored", "block_hashes": [7], "parent_block_hash": None, "token_ids": [1, 2]}
    stored |= {"block_size": 2, "lora_id": None, "medium": "GPU"}
    removed, cleared = {"type": "BlockRemoved", "block_hashes": [7]}, {"type": "AllBlocksCleared"}
    assert msgspec.msgpack.decode(encode_batch(batch)) == [1.5, [stored, removed, cleared], 0]


def test_the_flag() -> None:
    config = Config.from_flat({"model_path": "m", "kv_events_config": {"publisher": "zmq", "topic": "t"}})
    assert kv_events(config.cache.kv_events_config) == KvEventsConfig("zmq", topic="t")
    assert kv_events('{"publisher": "null"}') is kv_events(None) is None
    for wrong in ('{"publisher": "nats"}', '{"topics": "t"}', "[]", '{"hwm": 0}'):
        with pytest.raises(ConfigError, match="--kv-events-config"):
            Config.from_flat({"model_path": "m", "kv_events_config": wrong})
    with pytest.raises(ConfigError, match="tcp://nowhere"):
        KvEventPublisher(KvEventsConfig("zmq", "tcp://nowhere*"), PAGE)

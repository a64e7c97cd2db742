"""The feed of cached blocks as subscribers read it: msgpack over ZMQ PUB, in the encoding of SGLang and vLLM.

A message has three frames: the topic, a sequence number (8 bytes, big endian), and an EventBatch. An event is a map
whose `type` is its class's name; fields at their default are left out. A replay request is an empty frame and an 8-byte
sequence number from a DEALER socket to the replay endpoint; the answers are every kept batch from there on, in frames
of nothing, sequence number and batch, and at last END_OF_REPLAY with an empty batch.
"""

import hashlib

import msgspec

from radixlm.protocol.messages import CacheNamespace

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
MEDIUM = "GPU"  # the tier that the KV pool is for its server, whatever the device


class BlockStored(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    """Blocks of `block_size` tokens, each a continuation of the one before; the first one continues the parent.

    A hash stands for all tokens up to the end of its block, and for what else must be equal to share them.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    cache_salt: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    """These blocks are not cached any more."""

    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Nothing is cached any more."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Events in their order; `ts` is when they were published, in Unix seconds."""

    ts: float
    events: list[KvEvent]
    attn_dp_rank: int | None = None


_decoder = msgspec.msgpack.Decoder(EventBatch)
_encoder = msgspec.msgpack.Encoder()


def encode_batch(batch: EventBatch) -> bytes:
    return _encoder.encode(batch)


def decode_batch(data: bytes) -> EventBatch:
    """The batch in `data`; msgspec.DecodeError when it is none."""
    return _decoder.decode(data)


def seed_of(namespace: CacheNamespace, weight_version: str) -> bytes:
    """What the hash of a first block continues: empty for a plain request on the weights the server began with."""
    if namespace == CacheNamespace() and weight_version == "default":
        return b""
    return hashlib.sha256(_encoder.encode([namespace, weight_version])).digest()


def chain(before: bytes, tokens: bytes, block_bytes: int) -> list[bytes]:
    """The digests of consecutive blocks, each over the digest before it and its own int32 tokens."""
    digests = []
    for start in range(0, len(tokens), block_bytes):
        before = hashlib.sha256(before + tokens[start : start + block_bytes]).digest()
        digests.append(before)
    return digests


def block_hash(digest: bytes) -> int:
    """A digest as a signed 64-bit integer."""
    return int.from_bytes(digest[:8], "big", signed=True)

"""In-batch prefix sharing: of requests with a long common prefix that is not cached yet one leads, the others wait.

Knows the prefixes that running requests are about to compute; decides nothing about memory or order. A follower is
released when its leader's part reaches the cache, and whenever the leader stops computing for any reason.
"""

import numpy as np
from numpy.typing import NDArray

from radixlm.protocol.arrays import I32
from radixlm.protocol.messages import CacheNamespace
from radixlm.scheduler.queue import WaitingQueue
from radixlm.scheduler.request import Request, State

MIN_SHARED_TOKENS = 32  # waiting for less than this costs more than computing it twice

_BLOCK_TOKENS = 32
_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)


class PrefixSharing:
    """Leaders by the hash of each of their prefixes of 32, 64, ... tokens; followers by leader."""

    def __init__(self, queue: WaitingQueue, page_size: int, enabled: bool) -> None:
        self._queue = queue
        self._page_size = page_size
        self._enabled = enabled
        self._leaders: dict[tuple[CacheNamespace, int], Request] = {}
        self._followers: dict[int, list[tuple[int, Request]]] = {}
        self._powers: NDArray[np.uint64] = np.ones(1, np.uint64)

    def lead(self, request: Request, cached_tokens: int) -> None:
        """`request` starts to compute its history after the first `cached_tokens`."""
        if not self._enabled:
            return
        for value in self._hashes(request)[cached_tokens // _BLOCK_TOKENS :]:
            self._leaders.setdefault((request.namespace, value), request)
        self._followers[request.key] = []

    def leader_of(self, request: Request, cached_tokens: int) -> tuple[Request, int] | None:
        """Who is computing at least MIN_SHARED_TOKENS of what `request` lacks, and the common tokens to wait for."""
        if not self._leaders:
            return None
        block = -(-(cached_tokens + MIN_SHARED_TOKENS) // _BLOCK_TOKENS) - 1
        usable = request.reusable
        if (block + 1) * _BLOCK_TOKENS > len(usable):
            return None
        leader = self._leaders.get((request.namespace, self._hashes(request)[block]))
        if leader is None:
            return None
        common = min(_common_tokens(leader.history, usable), len(usable) - 1)
        until = common // self._page_size * self._page_size
        return (leader, until) if until - cached_tokens >= MIN_SHARED_TOKENS else None

    def follow(self, request: Request, leader: Request, until_tokens: int) -> None:
        """Park `request` until the first `until_tokens` of `leader` are cached."""
        self._queue.park(request)
        self._followers[leader.key].append((until_tokens, request))

    def advance(self, leader: Request, cached_tokens: int) -> None:
        """The first `cached_tokens` of `leader` are in the cache now."""
        followers = self._followers.get(leader.key)
        if not followers:
            return
        self._followers[leader.key] = [entry for entry in followers if entry[0] > cached_tokens]
        self._release([request for until, request in followers if until <= cached_tokens])

    def close(self, leader: Request) -> None:
        """`leader` computes no more prefix: it has finished doing so, or was stopped. Harmless if it never led."""
        followers = self._followers.pop(leader.key, None)
        if followers is None:
            return
        for value in leader.block_hashes:
            if self._leaders.get((leader.namespace, value)) is leader:
                del self._leaders[leader.namespace, value]
        self._release([request for _, request in followers])

    def parked(self) -> list[Request]:
        """Every request that waits for a leader."""
        return [r for entries in self._followers.values() for _, r in entries if r.state is State.PARKED]

    def _release(self, followers: list[Request]) -> None:
        for request in followers:
            if request.state is State.PARKED:
                self._queue.unpark(request)

    def _hashes(self, request: Request) -> list[int]:
        """One hash per prefix of whole blocks: a polynomial in the tokens modulo 2**64. Collisions are harmless."""
        wanted = len(request.history) // _BLOCK_TOKENS
        if len(request.block_hashes) != wanted:
            length = wanted * _BLOCK_TOKENS
            if len(self._powers) < length:
                self._powers = np.cumprod(np.full(2 * length, _HASH_BASE), dtype=np.uint64)
            terms = (request.history[:length].astype(np.uint64) + np.uint64(1)) * self._powers[:length]
            request.block_hashes = np.cumsum(terms)[_BLOCK_TOKENS - 1 :: _BLOCK_TOKENS].tolist()
        return request.block_hashes


def _common_tokens(left: I32, right: I32) -> int:
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length

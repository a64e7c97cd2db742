"""Every transition of every request, and the one path on which a running request gives back what it holds.

Ties slots, leases, queue and sharing together, so that they cannot disagree; decides neither when nor why.
"""

from radixlm.cache.manager import CacheManager, Lease
from radixlm.cache.radix import Match
from radixlm.protocol.arrays import I32
from radixlm.protocol.messages import FinishReason
from radixlm.scheduler.outbox import Outbox
from radixlm.scheduler.queue import WaitingQueue
from radixlm.scheduler.request import Request, State
from radixlm.scheduler.sharing import PrefixSharing
from radixlm.scheduler.slots import SlotTable


class Lifecycle:
    """`requests` holds every request that has not ended, by key; `held` of them wait for their release.

    The token counts are totals since start: prompts of requests that started, and what was retracted.
    """

    def __init__(
        self, cache: CacheManager, slots: SlotTable, queue: WaitingQueue, sharing: PrefixSharing, outbox: Outbox
    ) -> None:
        self.requests: dict[int, Request] = {}
        self.held = 0
        self.started_tokens = self.retracted_input_tokens = self.retracted_output_tokens = 0
        self._cache = cache
        self._slots = slots
        self._queue = queue
        self._sharing = sharing
        self._outbox = outbox

    def submit(self, request: Request) -> None:
        """A new request joins the queue; ValueError when its key is taken."""
        if request.key in self.requests:
            raise ValueError(f"request key {request.key} is in use")
        self.requests[request.key] = request
        if request.state is State.HELD:
            self.held += 1
        else:
            self._queue.add(request)

    def release(self, request: Request) -> None:
        """A held request joins the queue, in its place by arrival."""
        request.move(State.WAITING)
        self.held -= 1
        self._queue.add(request)

    def refuse(self, request: Request, reason: FinishReason) -> None:
        """A new request that never joins the queue."""
        request.move(State.DONE)
        self._outbox.end(request, request.history, reason)

    def start(self, request: Request, match: Match, now: float) -> int:
        """From the queue onto a slot, on a match made just before. Returns the slot."""
        self._queue.remove(request)
        request.move(State.RUNNING)
        cached_tokens = len(match.pages) * self._cache.page_size
        request.lease = self._cache.acquire(request.namespace, match, request.standing)
        request.slot = self._slots.open(request, match.pages)
        if not request.started:
            request.started = True
            self.started_tokens += request.prompt_tokens
            request.queue_time = now - request.enqueued_at
            request.cached_tokens = cached_tokens
        if request.cacheable:
            self._sharing.lead(request, cached_tokens)
        return request.slot

    def publish(self, request: Request) -> None:
        """A chunk of a running request was committed: its full pages become visible to others."""
        slot, lease = request.slot, _lease(request)
        first = lease.tree_pages
        t = self._slots
        if request.cacheable:
            kept = self._cache.publish(lease, t.committed(slot), t.own_pages(slot), int(t.step[slot]))
            t.set_pages(slot, first, kept)
            t.shared[slot] = lease.tree_pages
        if t.done[slot] >= t.target[slot]:
            self._sharing.close(request)
        else:
            self._sharing.advance(request, lease.tree_pages * self._cache.page_size)

    def retract(self, request: Request) -> None:
        """From its slot back into the queue, keeping the committed outputs; its tokens in flight will be made again."""
        history = self._leave(request, keep_kv=False)
        request.history = history
        request.retractions += 1
        self.retracted_input_tokens += request.prompt_tokens
        self.retracted_output_tokens += len(history) - request.prompt_tokens
        request.move(State.WAITING)
        self._queue.add(request)

    def finish(self, request: Request, reason: FinishReason, keep_kv: bool = True) -> None:
        """End a request in whatever state; with `keep_kv` the KV that a running one has committed stays cached."""
        history = request.history
        if request.state is State.RUNNING:
            history = self._leave(request, keep_kv)
        elif request.state is State.HELD:
            self.held -= 1
        else:
            self._queue.remove(request)
        request.move(State.DONE)
        del self.requests[request.key]
        self._outbox.end(request, history, reason)

    def _leave(self, request: Request, keep_kv: bool) -> I32:
        """Off the slot, pages and locks given back behind the last step that used them. Returns the history."""
        slot, lease, t = request.slot, _lease(request), self._slots
        self._sharing.close(request)
        fence = int(t.step[slot])
        if keep_kv and request.cacheable:
            self._cache.release(lease, t.committed(slot), t.own_pages(slot), fence)
        else:
            self._cache.abandon(lease, t.own_pages(slot), fence)
        request.sent = int(t.sent[slot])
        request.read = max(request.read, int(t.done[slot]))
        history = t.history(slot)
        t.close(slot)
        request.lease, request.slot = None, -1
        return history


def _lease(request: Request) -> Lease:
    if request.lease is None:
        raise ValueError(f"request {request.key} holds no lease")
    return request.lease

"""The numbers of running requests, a column per quantity and a row per device slot: a step over thousands of them is a
few array operations. Owns no page and decides nothing.
"""

import numpy as np

from radixlm.protocol.arrays import I32, I64, empty_i32
from radixlm.protocol.plan import SlotInit
from radixlm.scheduler.request import Request


class SlotTable:
    """Columns by slot; a slot's values mean something while it is in `active`.

    Attributes:
        active: int32, the slots in use, oldest admission first.
        tokens: int32 [slots, longest]: prompt and committed outputs; pages: int32 [slots, pages]: its page table.
            Both are touched only where used, so their unused part takes no memory.
        key: the request's key. epoch: counts the slot's occupants; a step's row is void when it has changed since.
        prompt: prompt tokens. known: tokens in `tokens`. target: tokens to be computed as chunks, before decoding.
        planned: tokens whose KV a planned step writes; done: those whose step is committed.
        sampled: output tokens planned, those in flight included. limit: most output tokens.
        held: pages. shared: the leading ones of them that are the prefix tree's.
        step: the last step planned with the slot. sent: output tokens given to the outbox.
        stream, watched, ignore_eos, reads: flags; a watched slot has stops beyond the model's own end tokens, one that
            reads is read out for more than tokens.
        started, updates: SlotInit records and page table changes that the next plan has to carry.
    """

    def __init__(self, num_slots: int, longest_tokens: int, page_size: int) -> None:
        self.page_size = page_size
        self.max_pages = -(-longest_tokens // page_size)
        self.active: I32 = empty_i32()
        self.tokens: I32 = np.empty((num_slots, longest_tokens), np.int32)
        self.pages: I32 = np.empty((num_slots, self.max_pages), np.int32)
        self.key: I64 = np.zeros(num_slots, np.int64)
        self.epoch: I64 = np.zeros(num_slots, np.int64)
        self.prompt, self.known, self.target, self.planned = (np.zeros(num_slots, np.int32) for _ in range(4))
        self.done, self.sampled, self.limit, self.held = (np.zeros(num_slots, np.int32) for _ in range(4))
        self.step: I32 = np.full(num_slots, -1, np.int32)
        self.shared, self.sent = (np.zeros(num_slots, np.int32) for _ in range(2))
        self.stream, self.watched, self.ignore_eos, self.reads, self.constrained = (
            np.zeros(num_slots, np.bool_) for _ in range(5)
        )
        self.requests: list[Request | None] = [None] * num_slots
        self.started: list[SlotInit] = []
        self.updates: list[I32] = []
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def request(self, slot: int) -> Request:
        """Who is on an active slot."""
        request = self.requests[slot]
        if request is None:
            raise ValueError(f"slot {slot} is empty")
        return request

    def running(self) -> list[Request]:
        """Who is on a slot, oldest admission first."""
        return [self.request(slot) for slot in self.active.tolist()]

    def open(self, request: Request, pages: I32) -> int:
        """Put a request on a free slot, with the KV of its first `pages` in place already. Returns the slot."""
        slot = self._free.pop()
        total, cached = len(request.history), len(pages) * self.page_size
        self.requests[slot] = request
        self.tokens[slot, :total] = request.history
        self.key[slot], self.prompt[slot] = request.key, request.prompt_tokens
        self.known[slot] = self.target[slot] = total
        self.planned[slot] = self.done[slot] = cached
        self.sampled[slot], self.limit[slot] = request.produced, request.max_outputs
        self.sent[slot] = request.sent
        self.step[slot] = -1
        self.stream[slot], self.ignore_eos[slot] = request.stream, request.sampling.ignore_eos
        self.watched[slot] = request.own_stop_ids or request.matcher is not None
        self.reads[slot] = request.has_readings
        self.constrained[slot] = request.constrained
        self.held[slot], self.shared[slot] = 0, len(pages)
        self.active = np.append(self.active, np.int32(slot))
        prompt, outputs = request.history[: request.prompt_tokens], request.history[request.prompt_tokens :]
        self.started.append(
            SlotInit(
                slot,
                request.sampling,
                () if request.constrained else request.stop_ids,  # the host's masks keep to min_new_tokens then
                prompt if request.sampling.penalized and request.cacheable else empty_i32(),
                outputs,
                request.logprobs,
                request.embeds,
                request.second_at,
            )
        )
        self.append_pages(slot, pages)
        return slot

    def close(self, slot: int) -> None:
        """The slot is free again; rows of it in flight are void from here on."""
        self.requests[slot] = None
        self.epoch[slot] += 1
        self.active = self.active[self.active != slot]
        self._free.append(slot)

    def append_pages(self, slot: int, pages: I32) -> None:
        """The slot's next pages."""
        first = int(self.held[slot])
        self.held[slot] += len(pages)
        self.set_pages(slot, first, pages)

    def set_pages(self, slot: int, first: int, pages: I32) -> None:
        """Page table entries from `first` on become `pages`; the next plan says so."""
        if not len(pages):
            return
        self.pages[slot, first : first + len(pages)] = pages
        update = np.empty((len(pages), 3), np.int32)
        update[:, 0] = slot
        update[:, 1] = np.arange(first, first + len(pages))
        update[:, 2] = pages
        self.updates.append(update)

    def spread_pages(self, slots: I32, counts: I32, pages: I32) -> None:
        """Slot `slots[i]` gets the next `counts[i]` of `pages` (several slots at once, each named once)."""
        rows = np.repeat(slots, counts)
        offsets = np.arange(len(pages), dtype=np.int32) - np.repeat(np.cumsum(counts) - counts, counts)
        columns = self.held[rows] + offsets
        self.pages[rows, columns] = pages
        self.held[slots] += counts
        self.updates.append(np.stack((rows, columns, pages), axis=1).astype(np.int32))

    def decoding(self) -> I32:
        """Active slots whose next token can be planned: chunks all planned, and not all outputs."""
        slots = self.active
        ready = (self.planned[slots] >= self.target[slots]) & (self.sampled[slots] < self.limit[slots])
        return slots[ready]

    def prefilling(self) -> list[int]:
        """Active slots with chunks still to be planned, oldest first."""
        slots = self.active
        return [int(slot) for slot in slots[self.planned[slots] < self.target[slots]]]

    def most_pages(self, slots: I32) -> I32:
        """Pages that each slot can ever need; the last output token's KV is never written."""
        longest = np.maximum(self.prompt[slots] + self.limit[slots] - 1, self.target[slots])
        pages: I32 = -(-longest // self.page_size)
        return pages

    def history(self, slot: int) -> I32:
        """A copy of the slot's prompt and committed outputs."""
        return self.tokens[slot, : self.known[slot]].copy()

    def committed(self, slot: int) -> I32:
        """The tokens whose KV is in the slot's pages for certain (a view)."""
        return self.tokens[slot, : self.done[slot]]

    def own_pages(self, slot: int) -> I32:
        """All pages of the slot (a view)."""
        return self.pages[slot, : self.held[slot]]

    def take_changes(self) -> tuple[list[SlotInit], I32]:
        """What the plan being made has to carry: (started, page_updates)."""
        started, self.started = self.started, []
        updates = np.concatenate(self.updates) if self.updates else np.empty((0, 3), np.int32)
        self.updates = []
        return started, updates

"""Which rows the next step has: decode rows first, then chunks of running requests, then of waiting ones, within the
step's token budget and the pool. Retracts when the pool runs dry. Knows no result and no message.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from radixlm.protocol.arrays import I32, I64, empty_i32
from radixlm.protocol.messages import FinishReason
from radixlm.protocol.plan import HOST, LAST, MASKED, SAMPLE, Reading, StepPlan
from radixlm.scheduler.coast import Coaster
from radixlm.scheduler.pacing import Pacing
from radixlm.scheduler.parts import Parts
from radixlm.scheduler.priorities import Preemption
from radixlm.scheduler.report import Load
from radixlm.scheduler.request import Request

RESERVE_TOKENS = 16  # a decoding row's pages grow by this much at once, whatever the page size
REFRESH_STEPS = 32  # so often the cached prefixes of waiting requests count as used,
REFRESHED_REQUESTS = 128  # of so many of them


@dataclass(frozen=True)
class PlannedStep:
    """What commit has to know of a step in flight; arrays [R] as in its plan. `epochs` are those of the slots."""

    step: int
    decode_rows: int
    slots: I32
    epochs: I64
    ends: I32
    flags: I32


@dataclass
class _Draft:
    """Rows of the step being planned."""

    decodes: I32 = field(default_factory=empty_i32)
    chunks: list[tuple[int, int, int]] = field(default_factory=list)  # slot, start, count
    cached_tokens: int = 0
    admitted: int = 0

    @property
    def empty(self) -> bool:
        return not len(self.decodes) and not self.chunks


class Planner:
    """Makes one step's plan at a time. `retracted_total` counts retractions since start. `coaster`: for simulations."""

    def __init__(self, parts: Parts) -> None:
        config, cache = parts.config, parts.cache
        chunk_tokens = config.chunked_prefill_size
        self._chunked = chunk_tokens is not None and chunk_tokens > 0
        self._step_tokens = chunk_tokens if self._chunked and chunk_tokens is not None else config.max_prefill_tokens
        self._cache = cache
        self._slots = parts.slots
        self._queue = parts.queue
        self._policy = parts.policy
        self._sharing = parts.sharing
        self._admission = parts.admission
        self._lifecycle = parts.lifecycle
        self._reporter = parts.reporter
        self._preemption = Preemption(parts)
        self._pacing = Pacing(config, len(parts.slots.requests))
        self._spares_urgent = config.retraction_policy == "priority"
        self._most_chunks = config.prefill_max_requests or cache.total_tokens
        self._reserve_pages = -(-RESERVE_TOKENS // cache.page_size)
        self.coaster = Coaster(parts, self._reserve_pages)
        self.retracted_total = 0

    def plan(self, step: int, now: float, in_flight: bool) -> tuple[StepPlan, PlannedStep] | None:
        """The next step, or None when nothing can run, or nothing until a step in flight is committed."""
        if step % REFRESH_STEPS == 0:
            self._refresh()
        draft = self._fill(now)
        while draft.empty and not in_flight and (len(self._slots.active) or self._queue.count):
            self._unblock()
            draft = self._fill(now)
        if draft.empty:
            return None
        self._pacing.planned(len(draft.chunks), draft.admitted)
        self._report(draft, now)
        return self._assemble(draft, step)

    def _refresh(self) -> None:
        """Keep what waiting requests will find in the cache from being the first to go."""
        for request in self._queue.waiting[:REFRESHED_REQUESTS]:
            self._cache.touch(self._cache.match(request.namespace, request.reusable))

    # ---- choosing rows ------------------------------------------------------------------------------------------

    def _fill(self, now: float) -> _Draft:
        self.retracted_total += self._preemption.make_way(now)
        draft = _Draft()
        draft.decodes, content = self._grow_decodes()
        if self._pacing.chunks_wait(len(draft.decodes)):
            return draft
        # chunks get at least a quarter of the budget, so that many decodes cannot starve a prompt
        budget = max(self._step_tokens - len(draft.decodes), self._step_tokens // 4, 1)
        for slot in self._slots.prefilling():
            planned = self._chunk(draft, slot, budget)
            content = content and planned > 0
            budget -= planned
            if budget <= 0 or len(draft.chunks) >= self._most_chunks:
                break
        if content and budget > 0:  # nobody who runs lacks memory: others may join
            self._admit(draft, budget, now)
        return draft

    def _grow_decodes(self) -> tuple[I32, bool]:
        """The slots that decode now, each with a page for its next token; False when one had to sit out for memory.

        Retracts while not even the pages of steps in flight would be enough.
        """
        t, cache = self._slots, self._cache
        rows = t.decoding()
        short = rows[t.planned[rows] >= t.held[rows] * cache.page_size]
        if not len(short):
            return rows, True
        if cache.obtainable_pages < len(short):
            self._retract_for_decodes()
            rows = t.decoding()
            short = rows[t.planned[rows] >= t.held[rows] * cache.page_size]
        wanted = np.minimum(self._reserve_pages, t.most_pages(short) - t.held[short])
        total = int(wanted.sum())
        if cache.secure(total) < total:
            wanted[:] = 0
            wanted[: cache.secure(len(short))] = 1  # the oldest first
            total = int(wanted.sum())
        t.spread_pages(short, wanted, cache.take(total))
        left_out = short[wanted == 0]
        return (rows[~np.isin(rows, left_out)], False) if len(left_out) else (rows, True)

    def _chunk(self, draft: _Draft, slot: int, budget: int) -> int:
        """Plan the slot's next chunk of at most `budget` tokens, as far as there are pages. Returns its tokens."""
        t, page = self._slots, self._cache.page_size
        start, held = int(t.planned[slot]), int(t.held[slot])
        count = int(t.target[slot]) - start
        if self._chunked:
            count = min(count, budget)
        missing = -(-(start + count) // page) - held
        if missing > 0:
            missing = self._cache.secure(missing)
            count = min(count, (held + missing) * page - start)
            if count <= 0:
                return 0
            t.append_pages(slot, self._cache.take(missing))
        draft.chunks.append((slot, start, count))
        t.planned[slot] = start + count
        return count

    def _admit(self, draft: _Draft, budget: int, now: float) -> None:
        """Start waiting requests, in the policy's order, until one does not fit."""
        if not self._queue.waiting or not self._slots.free_slots or self._admission_waits(len(draft.decodes), now):
            return
        promised: float | None = None
        for request in list(self._policy.order(self._queue.waiting, now)):
            if budget <= 0 or len(draft.chunks) >= self._most_chunks or not self._slots.free_slots:
                return
            match = self._cache.match(request.namespace, request.reusable)
            cached_tokens = len(match.pages) * self._cache.page_size
            found = self._sharing.leader_of(request, cached_tokens)
            if found is not None:
                self._sharing.follow(request, *found)
                continue
            if promised is None:
                promised = self._admission.promised_tokens(self._slots.active)
            if not self._admission.fits(request, match, promised):
                return
            uncached_tokens = len(request.history) - cached_tokens
            if not self._chunked and draft.chunks and uncached_tokens > budget:
                return
            first_start = not request.started
            slot = self._lifecycle.start(request, match, now)
            draft.cached_tokens += cached_tokens if first_start else 0
            draft.admitted += 1
            planned = self._chunk(draft, slot, budget)
            if not planned:
                return
            budget -= planned
            promised += self._admission.promised_tokens(np.array([slot], np.int32))

    def _admission_waits(self, decoding: int, now: float) -> bool:
        cache, free_slots = self._cache, self._slots.free_slots
        usage = cache.used_tokens / cache.total_tokens
        return self._pacing.admission_waits(len(self._queue.waiting), decoding, free_slots, usage, now)

    # ---- when memory is short -----------------------------------------------------------------------------------

    def _retract_for_decodes(self) -> None:
        """Retract until every decoding slot that is left could have one more page once the steps in flight are done."""
        t, page = self._slots, self._cache.page_size
        before, ratio = self._cache.obtainable_pages, self._admission.ratio
        retracted = 0
        while len(t.active) > 1:
            rows = t.decoding()
            if self._cache.obtainable_pages >= (t.planned[rows] >= t.held[rows] * page).sum():
                break
            self._lifecycle.retract(self._victim())
            retracted += 1
        self._count_retractions(retracted, (self._cache.obtainable_pages - before) * page, ratio)

    def _unblock(self) -> None:
        """Nothing can run and nothing is in flight: make room by retracting, or end what can never run."""
        cache = self._cache
        if len(self._slots.active) > 1:
            before, ratio = cache.obtainable_pages, self._admission.ratio
            self._lifecycle.retract(self._victim())
            self._count_retractions(1, (cache.obtainable_pages - before) * cache.page_size, ratio)
            return
        self._end(self._victim() if len(self._slots.active) else self._head(), "The request cannot run")

    def give_up(self, why: str) -> None:
        """End who is in front, with the reason `why`, so that the others may have better luck. Harmless with nobody."""
        if self._queue.waiting:
            self._end(self._head(), why)
        elif len(self._slots.active):
            self._end(self._victim(), why)

    def _end(self, request: Request, why: str) -> None:
        cache = self._cache
        message = (
            f"{why}: its {len(request.history)} tokens need "
            f"{-(-(len(request.history) + 1) // cache.page_size)} KV pages of {cache.page_size} tokens; of "
            f"{cache.num_pages} pages {cache.free_pages} are free and {cache.evictable_pages} evictable."
        )
        reason = FinishReason("abort", message=message, status_code=500, err_type="InternalServerError")
        self._lifecycle.finish(request, reason, keep_kv=False)

    def _victim(self) -> Request:
        """Fewest outputs first; of those the longest prompt, then the latest admitted. Urgency may come before all."""
        t = self._slots
        slots = t.active
        place = np.arange(len(slots), dtype=np.int32)
        keys: list[I32 | I64] = [-place, -t.prompt[slots], t.known[slots] - t.prompt[slots]]
        if self._spares_urgent:
            keys.append(np.array([t.request(slot).urgency for slot in slots.tolist()], np.int64))
        first = np.lexsort(keys)[0]
        return t.request(int(slots[first]))

    def _head(self) -> Request:
        """The request that should have started. Followers wait for a running leader, so somebody is in front."""
        return self._queue.waiting[0]

    def _count_retractions(self, requests: int, tokens_gained: int, ratio_before: float) -> None:
        if requests:
            self.retracted_total += requests
            self._admission.retracted()
            self._reporter.retraction(requests, tokens_gained, ratio_before, self._admission.ratio)

    # ---- writing it down ----------------------------------------------------------------------------------------

    def _report(self, draft: _Draft, now: float) -> None:
        if not draft.chunks:
            return
        t = self._slots
        pending = self._queue.tokens + int((t.target[t.active] - t.planned[t.active]).clip(min=0).sum())
        load = Load(len(draft.decodes), self._queue.count, self._cache.used_tokens, self._cache.total_tokens)
        new_tokens = sum(count for _, _, count in draft.chunks)
        self._reporter.prefill(now, len(draft.chunks), new_tokens, draft.cached_tokens, pending, load)

    def _assemble(self, draft: _Draft, step: int) -> tuple[StepPlan, PlannedStep]:
        """The plan of the drafted rows; the slots' numbers move on to what they will be after the step."""
        t, decode_rows = self._slots, len(draft.decodes)
        chunks = np.array(draft.chunks, np.int32).reshape(-1, 3)
        slots = np.concatenate((draft.decodes, chunks[:, 0]))
        starts = np.concatenate((t.planned[draft.decodes], chunks[:, 1]))
        counts = np.concatenate((np.ones(decode_rows, np.int32), chunks[:, 2]))
        ends = starts + counts
        outputs = t.sampled[slots]
        samples = np.ones(len(slots), np.bool_)
        samples[decode_rows:] = (ends == t.target[slots])[decode_rows:] & (outputs < t.limit[slots])[decode_rows:]
        flags = np.where(samples, SAMPLE, 0).astype(np.int32)
        flags[samples & t.constrained[slots]] |= MASKED
        flags[decode_rows:] |= HOST
        flags[decode_rows:] |= np.where((ends == t.target[slots]) & ~samples, LAST, 0)[decode_rows:].astype(np.int32)
        parts = [t.tokens[slot, start : start + count] for slot, start, count in draft.chunks]
        tokens = np.concatenate(parts) if parts else empty_i32()
        t.planned[slots] = ends
        t.sampled[slots] += samples
        t.step[slots] = step
        readings = self._readings(slots, starts, ends, samples)
        started, updates = t.take_changes()
        plan = StepPlan(step, decode_rows, slots, starts, counts, flags, outputs, tokens, updates, started, readings)
        return plan, PlannedStep(step, decode_rows, slots, t.epoch[slots], ends, flags)

    def _readings(self, slots: I32, starts: I32, ends: I32, samples: NDArray[np.bool_]) -> dict[int, Reading]:
        t = self._slots
        found: dict[int, Reading] = {}
        for row in np.flatnonzero(t.reads[slots]).tolist():
            slot = int(slots[row])
            request, span = t.request(slot), (int(starts[row]), int(ends[row]))
            reading = request.reading(*span, t.tokens[slot], bool(samples[row]))
            if reading is not None:
                found[row] = reading
        return found

"""The scheduler: events and results in, step plans and output out. Pure: no tensor, no socket, no clock."""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from radixlm.cache.manager import CacheManager
from radixlm.config.groups import ScheduleConfig
from radixlm.protocol.arrays import I32
from radixlm.protocol.control import FlushCacheReply, TreeReply
from radixlm.protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    FinishReason,
    ReleaseReq,
    SchedulerStats,
    TokenizedGenerateReqInput,
)
from radixlm.protocol.plan import MASKED, NOT_FINITE, SAMPLE, StepPlan, StepResult
from radixlm.scheduler.admission import Admission
from radixlm.scheduler.intake import Intake
from radixlm.scheduler.lifecycle import Lifecycle
from radixlm.scheduler.limits import SchedulerLimits
from radixlm.scheduler.outbox import Outbox
from radixlm.scheduler.parts import Parts
from radixlm.scheduler.planner import PlannedStep, Planner
from radixlm.scheduler.policies.table import choose_policy
from radixlm.scheduler.priorities import Priorities
from radixlm.scheduler.queue import WaitingQueue
from radixlm.scheduler.report import Load, Reporter
from radixlm.scheduler.request import State
from radixlm.scheduler.sharing import PrefixSharing
from radixlm.scheduler.slots import SlotTable
from radixlm.scheduler.stall import STALL_S, StallWatch

__all__ = ["Scheduler", "SchedulerLimits"]

_NOT_FINITE = FinishReason(
    "abort", message="The logits are not finite.", status_code=500, err_type="InternalServerError"
)


class Scheduler:
    """Decides what runs. Call `plan`, run the step, and give every step's result to `commit` in the order of the plans;
    any number of steps may be planned before the first of them is committed. Time is the caller's, in seconds.

    Attributes:
        paused: nothing is planned until `resume`.
        conservation_errors_total: commits after which the books of the KV pool did not add up; it should stay 0.
    """

    def __init__(
        self,
        config: ScheduleConfig,
        cache: CacheManager,
        limits: SchedulerLimits,
        token_bytes: Sequence[bytes] | None,
    ) -> None:
        """`token_bytes[t]` is the text of token t as bytes, for stop strings; None when there is no tokenizer."""
        policy = choose_policy(config.schedule_policy, cache.radix)
        self.conservation_errors_total = 0
        self._limits = limits
        self._cache = cache
        self._slots = SlotTable(limits.max_running_requests, limits.longest_tokens, cache.page_size)
        self._queue = WaitingQueue()
        self._sharing = PrefixSharing(self._queue, cache.page_size, cache.radix)
        self._outbox = Outbox(self._slots)
        self._life = Lifecycle(cache, self._slots, self._queue, self._sharing, self._outbox)
        self._intake = Intake(limits, Priorities(config), token_bytes, self._life)
        self._admission = Admission(cache, self._slots, config.schedule_conservativeness)
        self._reporter = Reporter(config.decode_log_interval)
        order = policy(cache, self._slots.running)
        self._planner = Planner(
            Parts(
                config,
                cache,
                self._slots,
                self._queue,
                order,
                self._sharing,
                self._admission,
                self._life,
                self._reporter,
            )
        )
        self._stall = StallWatch()
        self._in_flight: deque[PlannedStep] = deque()
        self._steps = 0
        self.paused = False
        self._eos = np.zeros(limits.vocab_size, np.bool_)
        self._eos[[token for token in limits.eos_token_ids if token < limits.vocab_size]] = True

    # ---- the loop's calls ---------------------------------------------------------------------------------------

    def plan(self, events: Sequence[TokenizedGenerateReqInput | AbortReq | ReleaseReq], now: float) -> StepPlan | None:
        """Take in what has arrived, and decide the next step.

        None: nothing to run, or nothing before a step in flight has been committed, or a pause.
        """
        for event in events:
            self._intake.take(event, now)
        if self.paused:
            return None
        planned = self._planner.plan(self._steps, now, bool(self._in_flight))
        if planned is None:
            if self.idle:
                self._admission.reset()
                self._reporter.idle()
            if self._all_held or self._in_flight:
                self._stall.moved()
            elif self._stall.stalled(now):
                self._planner.give_up(f"Nothing could run for {STALL_S:g} s")
            return None
        self._stall.moved()
        plan, record = planned
        self._steps += 1
        self._in_flight.append(record)
        return plan

    def commit(self, result: StepResult, now: float) -> None:
        """Take in what a step produced; ValueError when it is not the oldest step in flight."""
        if not self._in_flight or self._in_flight[0].step != result.step:
            raise ValueError(f"result of step {result.step} is not the next to commit")
        record = self._in_flight.popleft()
        self._cache.retire(record.step)
        live = self._slots.epoch[record.slots] == record.epochs
        if result.error is not None:
            self._fail(record.slots[live], result.error)
        else:
            self._keep_extras(record, live, result)
            self._accept(record, live, result, now)
        if not self._books_balance():
            self.conservation_errors_total += 1

    def pause(self, retract: bool) -> None:
        """Plan nothing more until `resume`; requests and aborts are still taken in, steps in flight still committed.

        With `retract` what runs goes back into the queue, its committed outputs kept and its KV freed.
        """
        self.paused = True
        for slot in self._slots.active.tolist() if retract else ():
            self._life.retract(self._slots.request(slot))

    def resume(self) -> None:
        """End a pause; harmless without one."""
        self.paused = False
        self._stall.moved()

    def coasting_room(self, most: int) -> int:
        """How many steps from here on, at most `most`, would be nothing but a token for each who runs; see `coast`.

        None of the rows in flight may end.
        """
        return 0 if self.paused else self._planner.coaster.room(most)

    def coast(self, steps: int, token: int) -> None:
        """For simulations: go as far as `steps` steps, at most `coasting_room`, that all sample `token`; no output.

        ValueError while a step is in flight. Arrivals meanwhile and end tokens are the caller's.
        """
        if self._in_flight:
            raise ValueError("a step is in flight")
        self._planner.coaster.go(steps, token)
        self._steps += steps

    def take_output(self) -> BatchTokenIDOutput | None:
        """New tokens and ends since the last call; None when there are none."""
        return self._outbox.take()

    def take_log_lines(self) -> list[str]:
        return self._reporter.take_lines()

    # ---- what others may know -----------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self._slots.active)

    @property
    def queued(self) -> int:
        return self._queue.count

    @property
    def idle(self) -> bool:
        """No request is known, no step is in flight and nothing waits to be sent."""
        return not self._life.requests and not self._in_flight and self._outbox.empty

    @property
    def resting(self) -> bool:
        """Nothing can be done until a message or a release comes: no request may run, or paused with nothing left to
        commit or send."""
        return (self.paused or self._all_held) and not self._in_flight and self._outbox.empty

    @property
    def _all_held(self) -> bool:
        """No request that is known may run yet."""
        return len(self._life.requests) == self._life.held

    def constrained(self, step: int) -> list[tuple[int, int]]:
        """(row, key) of each row of a step in flight that samples under a constraint and still counts."""
        record = next(record for record in self._in_flight if record.step == step)
        rows = np.flatnonzero(record.flags & MASKED)
        rows = rows[self._slots.epoch[record.slots[rows]] == record.epochs[rows]]
        return list(zip(rows.tolist(), self._slots.key[record.slots[rows]].tolist(), strict=True))

    def flush_cache(self, now: float) -> FlushCacheReply:
        """Forget all cached prefixes, unless something runs, is in flight or, without a pause, waits."""
        busy = self.running if self.paused else len(self._life.requests)
        if not busy and not self._in_flight and self._cache.flush():
            return FlushCacheReply(True, "Cache flushed.")
        message = f"Cache not flushed: #running-req: {self.running}, #queue-req: {self.queued}"
        return FlushCacheReply(False, message)

    def stats(self, now: float) -> SchedulerStats:
        cache, reporter, page = self._cache, self._reporter, self._cache.page_size
        return SchedulerStats(
            time=now,
            step=self._steps,
            num_running_reqs=self.running,
            num_queue_reqs=self.queued,
            num_grammar_queue_reqs=self._life.held,
            num_retracted_requests_total=self._planner.retracted_total,
            kv_available_tokens=cache.free_pages * page,
            kv_evictable_tokens=cache.evictable_pages * page,
            kv_used_tokens=cache.used_tokens,
            max_total_num_tokens=cache.total_tokens,
            gen_throughput=reporter.current_gen_throughput(now),
            cache_hit_rate=reporter.cache_hit_rate(now),
            new_token_ratio=self._admission.ratio,
            prefill_compute_tokens_total=reporter.prefill_tokens,
            prefill_cache_tokens_total=reporter.cached_tokens,
            decode_tokens_total=reporter.decode_tokens,
            evicted_tokens_total=cache.evicted_tokens,
            conservation_errors_total=self.conservation_errors_total,
            decode_sum_seq_lens=int(self._slots.known[self._slots.decoding()].sum()),
            num_unique_running_routing_keys=len(self._routing_keys()),
            retracted_input_tokens_total=self._life.retracted_input_tokens,
            retracted_output_tokens_total=self._life.retracted_output_tokens,
            effective_input_tokens_total=self._life.started_tokens,
        )

    def tree(self, most: int, head_tokens: int) -> TreeReply:
        """The hottest `most` nodes of the prefix tree, in bounded time."""
        cache, page = self._cache, self._cache.page_size
        nodes = cache.hottest(most, head_tokens)
        return TreeReply(nodes, cache.tree_nodes, cache.tree_pages * page, cache.evictable_pages * page)

    def check(self) -> list[str]:
        """Everything that is inconsistent, by walking all state; empty when all is well. For tests and diagnosis."""
        found = self._cache.problems()
        if not self._books_balance():
            found.append(f"running requests hold other than the {self._cache.private_pages} private pages")
        by_state = {state: [r for r in self._life.requests.values() if r.state is state] for state in State}
        if {r.slot for r in by_state[State.RUNNING]} != set(self._slots.active.tolist()):
            found.append("running requests and active slots differ")
        if {r.key for r in by_state[State.PARKED]} != {r.key for r in self._sharing.parked()}:
            found.append("a parked request has no leader")
        if [r.key for r in self._queue.waiting] != [
            r.key for r in sorted(by_state[State.WAITING], key=lambda r: r.rank)
        ]:
            found.append("the queue is not the waiting requests by urgency and arrival")
        if self._queue.count != len(by_state[State.WAITING]) + len(by_state[State.PARKED]):
            found.append("queued requests are miscounted")
        if self._life.held != len(by_state[State.HELD]):
            found.append("held requests are miscounted")
        if by_state[State.DONE]:
            found.append("an ended request is still known")
        return found

    # ---- inside -------------------------------------------------------------------------------------------------

    def _accept(self, record: PlannedStep, live: NDArray[np.bool_], result: StepResult, now: float) -> None:
        """Write a good step's results into the slots of its live rows, and end the requests that are over."""
        t, tokens = self._slots, np.asarray(result.tokens, np.int32)
        t.done[record.slots[live]] = record.ends[live]
        for row in (np.flatnonzero(live[record.decode_rows :]) + record.decode_rows).tolist():
            request = t.request(int(record.slots[row]))
            self._life.publish(request)
            if not t.limit[request.slot] and t.done[request.slot] == t.target[request.slot]:
                finite = tokens[row] != NOT_FINITE
                self._life.finish(request, FinishReason("length", length=0) if finite else _NOT_FINITE, keep_kv=finite)
        sampled = live & ((record.flags & SAMPLE) != 0)
        slots, tokens = record.slots[sampled], tokens[sampled]
        bad = (tokens < 0) | (tokens >= self._limits.vocab_size)
        for slot in slots[bad].tolist():
            self._life.finish(t.request(slot), _NOT_FINITE, keep_kv=False)
        slots, tokens = slots[~bad], tokens[~bad]
        t.tokens[slots, t.known[slots]] = tokens
        t.known[slots] += 1
        over = (t.known[slots] - t.prompt[slots] >= t.limit[slots]) | (self._eos[tokens] & ~t.ignore_eos[slots])
        for index in np.flatnonzero(over | t.watched[slots]).tolist():
            self._maybe_finish(int(slots[index]), int(tokens[index]))
        self._end_constrained(record, live, result)
        self._reporter.generated(len(slots))
        if record.decode_rows:
            self._admission.decay()
            load = Load(self.running, self.queued, self._cache.used_tokens, self._cache.total_tokens)
            self._reporter.decode(now, load, result.replayed)

    def _end_constrained(self, record: PlannedStep, live: NDArray[np.bool_], result: StepResult) -> None:
        """End the requests whose constraint is over, unless their token has ended them already."""
        for row, problem in result.ends.items():
            slot = int(record.slots[row])
            if not live[row] or self._slots.epoch[slot] != record.epochs[row]:
                continue
            request = self._slots.request(slot)
            reason = FinishReason("abort", message=problem, status_code=400, err_type="BadRequestError")
            if problem is None:
                stop = next(iter(self._limits.eos_token_ids), None)
                reason = FinishReason("stop", matched=stop)
            self._life.finish(request, reason)

    def _keep_extras(self, record: PlannedStep, live: NDArray[np.bool_], result: StepResult) -> None:
        for row, extras in result.extras.items():
            if live[row]:
                self._slots.request(int(record.slots[row])).extras.append(extras)

    def _maybe_finish(self, slot: int, token: int) -> None:
        """End the request if its newest token does: stop strings, then patterns, then stop tokens, then length."""
        request = self._slots.request(slot)
        matched = request.matcher.feed(token) if request.matcher is not None else None
        if matched is not None:
            self._life.finish(request, FinishReason("stop", matched=matched))
        elif token in request.stop_ids:
            self._life.finish(request, FinishReason("stop", matched=token))
        elif self._slots.known[slot] - self._slots.prompt[slot] >= request.max_outputs:
            self._life.finish(request, FinishReason("length", length=request.max_outputs))

    def _fail(self, slots: I32, error: str) -> None:
        """A step failed as a whole: its requests end, and what they computed is not kept."""
        for slot in slots.tolist():
            reason = FinishReason("abort", message=error, status_code=500, err_type="InternalServerError")
            self._life.finish(self._slots.request(slot), reason, keep_kv=False)

    def _routing_keys(self) -> set[str]:
        running = (self._slots.request(slot) for slot in self._slots.active.tolist())
        return {request.routing_key for request in running if request.routing_key}

    def _books_balance(self) -> bool:
        """The pool is conserved, and private pages are exactly those of running requests."""
        t, active = self._slots, self._slots.active
        return self._cache.conserved and int((t.held[active] - t.shared[active]).sum()) == self._cache.private_pages

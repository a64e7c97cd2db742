"""The loop: messages in, one plan, one launch, the due commits, messages out. Here scheduler meets runner.

`run_ahead` is how many launched steps may be uncommitted while the next one is planned: 0 runs strictly in turn, 1 lets
the host decide step n+1 while the device computes step n. The tokens are the same for every depth.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from torch import Tensor

from radixlm.base import log
from radixlm.engine.control import Controls
from radixlm.engine.grammars import GrammarRoom, GrammarSettings
from radixlm.engine.profiler import StepProfiler
from radixlm.engine.stages import StageClock
from radixlm.protocol.messages import (
    AbortReq,
    ControlReq,
    FromScheduler,
    Message,
    ReleaseReq,
    ShutdownReq,
    TokenizedGenerateReqInput,
)
from radixlm.protocol.plan import MASKED, StepPlan, StepResult
from radixlm.runner.masks import MaskSource, TokenMasks
from radixlm.runner.runner import StepInFlight
from radixlm.scheduler.scheduler import Scheduler

logger = log.get(__name__)
PROMPT_WEIGHT = 1000  # a step with prompt tokens counts like so many decode steps until messages are looked for
HELD_WAIT_S = 0.003  # between looks at grammars that are being compiled, when there is nothing else to do
PULSE_S = 1.0  # the longest time without a SchedulerStats while the loop turns


class Inbox(Protocol):
    def drain(self, timeout_s: float = 0.0) -> Sequence[Message]: ...


class StepRunner(Protocol):
    """What the loop needs of a runner; tests give it one without a device."""

    def launch(self, plan: StepPlan, masks: MaskSource | None = None) -> StepInFlight: ...

    def retire(self, step: StepInFlight) -> StepResult: ...

    def weight(self, name: str) -> Tensor | None: ...


class Loop:
    """Drives one scheduler and one runner until a ShutdownReq."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        inbox: Inbox,
        emit: Callable[[FromScheduler], None],
        run_ahead: int,
        recv_interval: int = 1,
        grammars: GrammarRoom | None = None,
    ) -> None:
        """Messages are looked for every `recv_interval` decode steps, after prompts, and whenever there is no work."""
        self._scheduler = scheduler
        self._runner = runner
        self._inbox = inbox
        self._emit = emit
        self._run_ahead = run_ahead
        self._grammars = grammars or GrammarRoom(GrammarSettings(), None, ())
        self._in_flight: deque[StepInFlight] = deque()
        self._profiler = StepProfiler()
        self._stages = StageClock()
        self._controls = Controls(scheduler, self._profiler, runner.weight)
        self._recv_interval = self._unreceived_steps = recv_interval
        self._running = True
        self._last_pulse_s = 0.0
        self._was_idle = False

    def run(self) -> None:
        while self._running:
            self.turn()

    def turn(self) -> None:
        """One round. Blocks up to PULSE_S when there is nothing to do."""
        idle = self._scheduler.resting and not self._in_flight
        due = idle or self._unreceived_steps >= self._recv_interval
        events = self._receive(self._patience_s if idle else 0.0) if due else []
        events += self._grammars.released()
        busy = bool(self._in_flight)
        self._stages.lap("idle" if idle else "recv_requests", busy)
        plan = self._scheduler.plan(events, time.time())
        self._stages.lap("get_next_batch_to_run", busy)
        self._unreceived_steps += PROMPT_WEIGHT if plan is not None and len(plan.slots) > plan.decode_rows else 1
        if plan is not None:
            self._in_flight.append(self._launch(plan))
            self._stages.lap("run_batch", busy)
        while self._in_flight and (plan is None or len(self._in_flight) > self._run_ahead):
            self._commit()
            if plan is None:
                break  # what was just committed may have made the next plan possible
        self._stages.lap("process_batch_result", bool(self._in_flight))
        output = self._scheduler.take_output()
        if output is not None:
            self._grammars.forget([finished.key for finished in output.finished])
            self._emit(output)
        for line in self._scheduler.take_log_lines():
            logger.info(line)
        self._pulse(idle)
        self._stages.lap("other", bool(self._in_flight))

    @property
    def _patience_s(self) -> float:
        """How long to wait for a message when there is nothing to do."""
        return HELD_WAIT_S if self._grammars.waiting else PULSE_S

    def _launch(self, plan: StepPlan) -> StepInFlight:
        """Where the host has a say in the next tokens, it is asked while the device computes, once all steps before
        have been committed: it sees committed tokens only."""
        if not (plan.flags & MASKED).any():
            return self._runner.launch(plan)

        def masks() -> TokenMasks | None:
            while self._in_flight:
                self._commit()
            return self._grammars.masks(self._scheduler.constrained(plan.step))

        return self._runner.launch(plan, masks)

    def _commit(self) -> None:
        """Wait for the oldest step in flight and take in what it produced."""
        step = self._in_flight.popleft()
        result = self._runner.retire(step)
        if result.error is None and (step.plan.flags & MASKED).any():
            ends = self._grammars.judge(self._scheduler.constrained(result.step), result.tokens)
            result = msgspec.structs.replace(result, ends=ends)
        self._scheduler.commit(result, time.time())
        self._stages.passed(len(step.plan.slots) > step.plan.decode_rows, step.replayed)
        if self._profiler.active:
            self._profiler.stepped()

    def _receive(self, timeout_s: float) -> list[TokenizedGenerateReqInput | AbortReq | ReleaseReq]:
        self._unreceived_steps = 0
        events: list[TokenizedGenerateReqInput | AbortReq | ReleaseReq] = []
        for message in self._inbox.drain(timeout_s):
            match message:
                case TokenizedGenerateReqInput():
                    self._grammars.take(message)
                    events.append(message)
                case AbortReq():
                    events.append(message)
                case ControlReq():
                    self._emit(self._controls.answer(message, time.time()))
                case ShutdownReq():
                    self._running = False
                case _:
                    logger.error("unexpected message %s", type(message).__name__)
        return events

    def _pulse(self, idle: bool) -> None:
        """Tell the world that the loop turns: once a second, and at once when it falls idle."""
        now_s = time.monotonic()
        if now_s - self._last_pulse_s >= PULSE_S or (idle and not self._was_idle):
            stages, stats = self._stages, self._scheduler.stats(time.time())
            spent = {"process_cpu_s_total": time.process_time(), "stage_s_total": dict(stages.seconds)}
            self._emit(msgspec.structs.replace(stats, **spent, passes_total=dict(stages.passes)))
            self._last_pulse_s = now_s
        self._was_idle = idle

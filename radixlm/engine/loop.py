"""The loop: messages in, one plan, one launch, the due commits, messages out. Here scheduler meets runner.

`run_ahead` is how many launched steps may be uncommitted while the next one is planned: 0 runs strictly in turn, 1 lets
the host decide step n+1 while the device computes step n. The tokens are the same for every depth.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from radixlm.base import log
from radixlm.engine.control import Controls
from radixlm.protocol.messages import (
    AbortReq,
    ControlReq,
    FromScheduler,
    Message,
    ShutdownReq,
    TokenizedGenerateReqInput,
)
from radixlm.protocol.plan import StepPlan, StepResult
from radixlm.runner.runner import StepInFlight
from radixlm.scheduler.scheduler import Scheduler

logger = log.get(__name__)
PULSE_S = 1.0  # the longest time without a SchedulerStats while the loop turns


class Inbox(Protocol):
    def drain(self, timeout_s: float = 0.0) -> Sequence[Message]: ...


class StepRunner(Protocol):
    """What the loop needs of a runner; tests give it one without a device."""

    def launch(self, plan: StepPlan) -> StepInFlight: ...

    def retire(self, step: StepInFlight) -> StepResult: ...


class Loop:
    """Drives one scheduler and one runner until a ShutdownReq."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        inbox: Inbox,
        emit: Callable[[FromScheduler], None],
        run_ahead: int,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._inbox = inbox
        self._emit = emit
        self._run_ahead = run_ahead
        self._in_flight: deque[StepInFlight] = deque()
        self._controls = Controls(scheduler)
        self._running = True
        self._last_pulse_s = 0.0
        self._was_idle = False

    def run(self) -> None:
        while self._running:
            self.turn()

    def turn(self) -> None:
        """One round. Blocks up to PULSE_S when there is nothing to do."""
        idle = self._scheduler.resting and not self._in_flight
        events = self._receive(PULSE_S if idle else 0.0)
        plan = self._scheduler.plan(events, time.time())
        if plan is not None:
            self._in_flight.append(self._runner.launch(plan))
        while self._in_flight and (plan is None or len(self._in_flight) > self._run_ahead):
            self._scheduler.commit(self._runner.retire(self._in_flight.popleft()), time.time())
            if plan is None:
                break  # what was just committed may have made the next plan possible
        output = self._scheduler.take_output()
        if output is not None:
            self._emit(output)
        for line in self._scheduler.take_log_lines():
            logger.info(line)
        self._pulse(idle)

    def _receive(self, timeout_s: float) -> list[TokenizedGenerateReqInput | AbortReq]:
        events: list[TokenizedGenerateReqInput | AbortReq] = []
        for message in self._inbox.drain(timeout_s):
            match message:
                case TokenizedGenerateReqInput() | AbortReq():
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
            self._emit(self._scheduler.stats(time.time()))
            self._last_pulse_s = now_s
        self._was_idle = idle

"""Compiles grammars off the caller's thread: tried out in a process that may be killed, then made here, then kept.

Knows sources, not requests. Every grammar goes down the quick lane first, where it may use little; what needs more goes
on in the slow lane. So a small grammar waits for nothing but the first moments of those before it.
"""

import math
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from radixlm.base import log
from radixlm.base.errors import ConfigError
from radixlm.grammar.base import (
    YIELDING,
    Grammar,
    GrammarBackend,
    GrammarError,
    GrammarTimeout,
    GrammarTooHeavy,
    GrammarUnsupported,
    Source,
    Vocabulary,
)
from radixlm.grammar.clock import Clock
from radixlm.grammar.judge import Judge
from radixlm.grammar.limits import why_refused
from radixlm.grammar.table import BACKENDS

logger = log.get(__name__)
DEADLINE_S = 10.0  # from a grammar's turn in a lane to the verdict there, whatever happens in between
QUICK_CPU_S, SLOW_CPU_S = 0.25, 3.0  # processor time for trying a grammar out, and then again for making it here
TIMEOUT_KEPT_S = 10.0  # so long a grammar that was too slow is not tried again
MOST_KEPT = 512
MOST_KEPT_BYTES = 1 << 30


@dataclass(eq=False)
class _Job:
    """A grammar that is being made. `due_s` by the service's clock; it has all the time until its turn in a lane has
    come, for a burst of grammars is no fault of any of them."""

    source: Source
    due_s: float = math.inf
    made: Grammar | GrammarError | None = None


@dataclass(frozen=True, eq=False)
class _Kept:
    made: Grammar | GrammarError
    size_bytes: int
    until_s: float | None = None


class CompileService:
    """Grammars by their source. Every method is for one thread, that of the loop."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        backend: str | None,
        deadline_s: float = DEADLINE_S,
        judge: Callable[[Vocabulary], Judge] = Judge,
    ) -> None:
        """`backend`: a name, or None or "auto" for the best that can enforce each grammar."""
        self._vocabulary = vocabulary
        self._asked_backend = backend
        self._deadline_s = deadline_s
        self._clock = Clock()
        self._backends: dict[str, GrammarBackend] = {}
        self._making = threading.Lock()
        slow = _Lane("grammar-slow", SLOW_CPU_S, judge(vocabulary))
        self._lanes = (_Lane("grammar", QUICK_CPU_S, judge(vocabulary), slow), slow)
        self._pending: dict[Source, _Job] = {}
        self._done: SimpleQueue[_Job] = SimpleQueue()
        self._kept: OrderedDict[Source, _Kept] = OrderedDict()

    def ask(self, source: Source) -> Grammar | None:
        """The grammar, or None while it is being compiled; ask again. GrammarError says why there is none."""
        self._collect()
        now_s = self._clock.now_s()
        kept = self._kept.get(source)
        if kept is not None and (kept.until_s is None or now_s < kept.until_s):
            self._kept.move_to_end(source)
            if isinstance(kept.made, GrammarError):
                raise kept.made.with_traceback(None)
            return kept.made
        job = self._pending.get(source)
        if job is None:
            job = self._pending[source] = _Job(source)
            self._lanes[0].submit(self._work, job)
        elif now_s > job.due_s:  # it may still be made, for those who ask later
            raise self._too_late()
        return None

    def close(self) -> None:
        """End the trial processes; what is being compiled fails."""
        for lane in self._lanes:
            lane.close()

    def _collect(self) -> None:
        """Keep what has been made since. The least recently used go first; the newest stays, whatever it takes."""
        while not self._done.empty():
            job = self._done.get()
            del self._pending[job.source]
            assert job.made is not None
            until_s = self._clock.now_s() + TIMEOUT_KEPT_S if isinstance(job.made, GrammarTimeout) else None
            self._kept[job.source] = _Kept(job.made, _size_bytes(job.source, job.made), until_s)
            self._kept.move_to_end(job.source)
            total_bytes = sum(kept.size_bytes for kept in self._kept.values())
            while len(self._kept) > 1 and (len(self._kept) > MOST_KEPT or total_bytes > MOST_KEPT_BYTES):
                total_bytes -= self._kept.popitem(last=False)[1].size_bytes

    def _too_late(self) -> GrammarTimeout:
        return GrammarTimeout(f"it takes longer than {self._deadline_s:g} s to compile")

    # ---- on a lane's thread

    def _work(self, job: _Job, lane: "_Lane") -> None:
        job.due_s = self._clock.now_s() + self._deadline_s
        try:
            job.made = self._compile(job, lane)
        except GrammarTooHeavy as error:
            if lane.heavier is not None:
                job.due_s = math.inf
                lane.heavier.submit(self._work, job)
                return
            job.made = error
        except GrammarError as error:
            job.made = error
        except Exception:
            logger.exception("a grammar could not be compiled")
            job.made = GrammarError("it cannot be compiled: the cause is in the server's log")
        self._done.put(job)

    def _compile(self, job: _Job, lane: "_Lane") -> Grammar:
        """By the first backend that takes it; where none does, the best one's reason is told."""
        problem = why_refused(job.source.kind, job.source.text)
        if problem is not None:
            raise GrammarError(problem)
        unsupported: GrammarUnsupported | None = None
        for name in self._candidates(job.source):
            try:
                return self._compile_with(name, job, lane)
            except GrammarUnsupported as error:
                unsupported = unsupported or error
        assert unsupported is not None
        raise unsupported

    def _compile_with(self, name: str, job: _Job, lane: "_Lane") -> Grammar:
        """What is done here cannot be interrupted; it is no more than what the trial has shown to be little."""
        with self._clock.stopped():
            lane.judge.prepare(name)
            backend = self._backend(name)  # both processes load the library at once
            lane.judge.await_ready()
        left_s = job.due_s - self._clock.now_s()
        if left_s <= 0:
            raise self._too_late()
        try:
            lane.judge.try_out(name, job.source, lane.cpu_s, left_s)
        except GrammarTimeout:
            raise self._too_late() from None
        return backend.compile(job.source)

    def _candidates(self, source: Source) -> list[str]:
        """The backends that have no reason against it, best first."""
        try:
            _, verdicts = BACKENDS.choose(self._asked_backend, lambda kind: kind.why_not(source))
        except ConfigError as error:
            raise GrammarError(str(error)) from None
        return [verdict.name for verdict in verdicts if not verdict.reasons]

    def _backend(self, name: str) -> GrammarBackend:
        with self._making:
            backend = self._backends.get(name)
            if backend is None:
                backend = self._backends[name] = BACKENDS.load(name)(self._vocabulary)
        return backend


class _Lane:
    """One thread and one trial process, for grammars that are tried out in `cpu_s` of processor time. What needs more
    goes to the `heavier` lane."""

    def __init__(self, name: str, cpu_s: float, judge: Judge, heavier: "_Lane | None" = None) -> None:
        self.cpu_s = cpu_s
        self.judge = judge
        self.heavier = heavier
        yielding = partial(_yield_to_others, _cores())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=yielding)

    def submit(self, work: "Callable[[_Job, _Lane], None]", job: _Job) -> None:
        self._thread.submit(work, job, self)

    def close(self) -> None:
        self.judge.end()
        self._thread.shutdown(wait=False, cancel_futures=True)


def _cores() -> set[int]:
    """Those that the calling thread may use; on Linux, where a thread has cores and a niceness of its own."""
    return os.sched_getaffinity(0) if sys.platform == "linux" else set()


def _yield_to_others(cores: set[int]) -> None:
    """Work when nobody else does, on any of `cores`: whoever starts this thread may have come to have fewer."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, cores)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), YIELDING)


def _size_bytes(source: Source, made: Grammar | GrammarError) -> int:
    return 2 * len(source.text) + (1024 if isinstance(made, GrammarError) else made.size_bytes)

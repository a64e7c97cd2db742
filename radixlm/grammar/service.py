"""Compiles grammars off the caller's thread: tried out in a process that may be killed, then made here, then kept.

Knows sources, not requests.
"""

import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from radixlm.base import log
from radixlm.base.errors import ConfigError
from radixlm.grammar.base import YIELDING, Grammar, GrammarBackend, GrammarError, GrammarTimeout, Source, Vocabulary
from radixlm.grammar.judge import DEADLINE_S, Judge
from radixlm.grammar.limits import why_refused
from radixlm.grammar.table import BACKENDS

logger = log.get(__name__)
MOST_KEPT = 512
MOST_KEPT_BYTES = 1 << 30
WORKERS = 2  # so that one grammar that runs into its deadline does not hold up all others


@dataclass
class Tally:
    """What has happened since start. `seconds`: what each compilation took, until somebody takes them."""

    asked: int = 0
    hits: int = 0
    failed: int = 0
    timeouts: int = 0
    seconds: list[float] = field(default_factory=list)


class CompileService:
    """Grammars by their source. Every method is for one thread, that of the loop."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        backend: str | None,
        deadline_s: float = DEADLINE_S,
        judge: Callable[[Vocabulary, float], Judge] = Judge,
    ) -> None:
        """`backend`: a name, or None or "auto" for the best that can enforce each grammar."""
        self.tally = Tally()
        self._vocabulary = vocabulary
        self._asked_backend = backend
        self._deadline_s = deadline_s
        self._make_judge = judge
        self._local = threading.local()
        self._judges: list[Judge] = []
        self._backends: dict[str, GrammarBackend] = {}
        self._making = threading.Lock()
        self._workers: ThreadPoolExecutor | None = None
        self._pending: dict[Source, Future[Grammar]] = {}
        self._kept: OrderedDict[Source, Grammar | GrammarError] = OrderedDict()

    def ask(self, source: Source) -> Grammar | None:
        """The grammar, or None while it is being compiled; ask again. GrammarError says why there is none."""
        pending = self._pending.get(source)
        if pending is not None:
            if not pending.done():
                return None
            del self._pending[source]
            return self._take(source, pending)
        self.tally.asked += 1
        kept = self._kept.get(source)
        if kept is None:
            self._pending[source] = self._pool().submit(self._compile, source)
            return None
        self.tally.hits += 1
        self._kept.move_to_end(source)
        if isinstance(kept, GrammarError):
            raise kept
        return kept

    def close(self) -> None:
        """End the trial processes; what is being compiled fails."""
        for judge in self._judges:
            judge.end()
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)

    def _pool(self) -> ThreadPoolExecutor:
        if self._workers is None:
            self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="grammar", initializer=_yield_to_others)
        return self._workers

    def _take(self, source: Source, done: "Future[Grammar]") -> Grammar:
        try:
            grammar = done.result()
        except GrammarTimeout:
            self.tally.timeouts += 1
            raise
        except GrammarError as error:
            self.tally.failed += 1
            self._keep(source, error)
            raise
        except Exception as error:
            logger.exception("a grammar could not be compiled")
            raise GrammarError(f"it cannot be compiled: {type(error).__name__}") from error
        self._keep(source, grammar)
        return grammar

    def _keep(self, source: Source, made: Grammar | GrammarError) -> None:
        """The least recently used go first; the newest stays, whatever it takes."""
        self._kept[source] = made
        sizes = {key: _size_bytes(key, value) for key, value in self._kept.items()}
        total_bytes = sum(sizes.values())
        while len(self._kept) > 1 and (len(self._kept) > MOST_KEPT or total_bytes > MOST_KEPT_BYTES):
            oldest, _ = self._kept.popitem(last=False)
            total_bytes -= sizes[oldest]

    # ---- on a worker's thread

    def _compile(self, source: Source) -> Grammar:
        began = time.monotonic()
        problem = why_refused(source.kind, source.text)
        if problem is not None:
            raise GrammarError(problem)
        name = self._choose(source)
        judge = self._judge()
        judge.prepare(name)
        backend = self._backend(name)  # both processes load the library at once
        judge.try_out(name, source)
        grammar = backend.compile(source)
        self.tally.seconds.append(time.monotonic() - began)
        return grammar

    def _choose(self, source: Source) -> str:
        try:
            _, verdicts = BACKENDS.choose(self._asked_backend, lambda kind: kind.why_not(source))
        except ConfigError as error:
            raise GrammarError(str(error)) from None
        return next(verdict.name for verdict in verdicts if verdict.chosen)

    def _judge(self) -> Judge:
        judge: Judge | None = getattr(self._local, "judge", None)
        if judge is None:
            judge = self._local.judge = self._make_judge(self._vocabulary, self._deadline_s)
            self._judges.append(judge)
        return judge

    def _backend(self, name: str) -> GrammarBackend:
        with self._making:
            backend = self._backends.get(name)
            if backend is None:
                backend = self._backends[name] = BACKENDS.load(name)(self._vocabulary)
        return backend


def _yield_to_others() -> None:
    """On Linux a thread has a niceness of its own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), YIELDING)


def _size_bytes(source: Source, made: Grammar | GrammarError) -> int:
    return 2 * len(source.text) + (1024 if isinstance(made, GrammarError) else made.size_bytes)

"""The side of the service that asks the trial process: starts it, waits no longer than the deadline, kills it."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import msgspec

from radixlm.grammar import wire
from radixlm.grammar.base import (
    GrammarError,
    GrammarTimeout,
    GrammarTooHeavy,
    GrammarUnsupported,
    Source,
    Vocabulary,
)

START_S = 120.0  # loading a library may take long on a busy machine; it is not the grammar's fault
MARGIN_S = 1.0  # the trial process keeps the time itself; one that does not is killed so much later


class Judge:
    """One trial process, started with the first question. Belongs to one thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._process: subprocess.Popen[bytes] | None = None
        self._warm: set[str] = set()
        self._starting = 0  # orders to load a backend that are not answered yet

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    def prepare(self, backend: str) -> None:
        """Start what `try_out` needs, and do not wait for it. Harmless when it has been done, or fails."""
        with contextlib.suppress(OSError):
            self._start(backend)

    def await_ready(self) -> None:
        """Wait for what `prepare` has started; a failure shows in `try_out`."""
        try:
            while self._starting:
                self._read(START_S)
                self._starting -= 1
        except (TimeoutError, EOFError, OSError):
            self.end()

    def try_out(self, backend: str, source: Source, cpu_s: float, wall_s: float) -> None:
        """GrammarError when `source` cannot be used: GrammarTooHeavy after `cpu_s` of processor time,
        GrammarTimeout after `wall_s`, GrammarUnsupported when another backend might take it."""
        fresh = self._process is None
        began_s = time.monotonic()
        try:
            self._start(backend)
            self.await_ready()
            outcome = self._ask(wire.Try(backend, source, cpu_s, wall_s), wall_s + MARGIN_S)
        except TimeoutError:
            self.end()
            raise GrammarTimeout("it takes too long to compile") from None
        except (EOFError, OSError):
            self.end()
            left_s = wall_s - (time.monotonic() - began_s)
            if fresh or left_s <= 0:
                raise GrammarError("it is more than the compiler can take") from None
            self.try_out(backend, source, cpu_s, left_s)  # the process may have died before
            return
        _raise(outcome, cpu_s)

    def end(self) -> None:
        """Kill the process, if there is one."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # a trial that is under way too
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process = None
        self._warm.clear()
        self._starting = 0

    def _start(self, backend: str) -> None:
        """Give orders to load the backend, unless that has been done."""
        if self._process is None or self._process.poll() is not None:
            self.end()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "radixlm.grammar.trial"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
            v = self._vocabulary
            self._send(wire.Hello(v.texts, v.stop_ids, v.size))
        if backend not in self._warm:
            self._send(wire.Warm(backend))
            self._warm.add(backend)
            self._starting += 1

    def _ask(self, order: wire.Order, limit_s: float) -> wire.Outcome:
        self._send(order)
        return self._read(limit_s)

    def _read(self, limit_s: float) -> wire.Outcome:
        if self._process is None or self._process.stdout is None:
            raise EOFError
        body = wire.read(self._process.stdout.fileno(), time.monotonic() + limit_s)
        return msgspec.msgpack.decode(body, type=wire.Outcome)

    def _send(self, order: wire.Order) -> None:
        if self._process is None or self._process.stdin is None:
            raise EOFError
        wire.write(self._process.stdin.fileno(), wire.encode(order))


def _raise(outcome: wire.Outcome, cpu_s: float) -> None:
    """The error that the outcome means, if it is not good."""
    match outcome.verdict:
        case "unsupported":
            raise GrammarUnsupported(outcome.error)
        case "too heavy":
            raise GrammarTooHeavy(f"it is too complex: it takes more than {cpu_s:g} s of processor time to compile")
        case "too late":
            raise GrammarTimeout("it takes too long to compile")
        case "bad":
            raise GrammarError(outcome.error)

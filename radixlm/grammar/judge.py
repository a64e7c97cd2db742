"""The side of the service that asks the trial process: starts it, waits no longer than the deadline, kills it."""

import contextlib
import subprocess
import sys
import time

import msgspec

from radixlm.grammar import wire
from radixlm.grammar.base import GrammarError, GrammarTimeout, Source, Vocabulary

DEADLINE_S = 10.0
START_S = 120.0  # loading a library may take long on a busy machine; it is not the grammar's fault


class Judge:
    """One trial process, started with the first question. Belongs to one thread."""

    def __init__(self, vocabulary: Vocabulary, deadline_s: float = DEADLINE_S) -> None:
        self._vocabulary = vocabulary
        self._deadline_s = deadline_s
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

    def try_out(self, backend: str, source: Source) -> None:
        """GrammarError when `source` cannot be used, or cannot be compiled in time or in the memory allowed."""
        fresh = self._process is None
        try:
            error = self._try(backend, source)
        except TimeoutError:
            self.end()
            raise GrammarTimeout(f"it takes longer than {self._deadline_s:g} s to compile") from None
        except (EOFError, OSError):
            self.end()
            if not fresh:  # it may have died before
                self.try_out(backend, source)
                return
            raise GrammarError("it is more than the compiler can take") from None
        if error is not None:
            raise GrammarError(error)

    def _try(self, backend: str, source: Source) -> str | None:
        self._start(backend)
        while self._starting:
            self._read(START_S)
            self._starting -= 1
        return self._ask(wire.Try(backend, source), self._deadline_s).error

    def end(self) -> None:
        """Kill the process, if there is one."""
        if self._process is None:
            return
        self._process.kill()
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
        assert self._process is not None and self._process.stdout is not None
        body = wire.read(self._process.stdout.fileno(), time.monotonic() + limit_s)
        return msgspec.msgpack.decode(body, type=wire.Outcome)

    def _send(self, order: wire.Order) -> None:
        assert self._process is not None and self._process.stdin is not None
        wire.write(self._process.stdin.fileno(), wire.encode(order))

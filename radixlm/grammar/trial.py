"""The trial process: it compiles what nobody trusts yet, each grammar in a fork that may be killed. Run as a module;
knows pipes only.

A grammar that takes too long, too much memory, or the whole process with it does so in the fork. The libraries are
loaded once, before, so that the next fork is ready at once.
"""

import gc
import os
import random
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import msgspec
import numpy as np

from radixlm.grammar import wire
from radixlm.grammar.base import (
    STEP_LIMIT_S,
    YIELDING,
    Grammar,
    GrammarBackend,
    GrammarError,
    GrammarUnsupported,
    Vocabulary,
)
from radixlm.grammar.table import BACKENDS

MEMORY_BYTES = 2 << 30  # on top of what the process has once its libraries are loaded
WALK_TOKENS = 32


class Trials:
    """Backends by name, made on first use."""

    def __init__(self, vocabulary: Vocabulary, orders: int) -> None:
        """`orders`: the descriptor of whoever gives orders; when it says something during a trial, it is gone."""
        self._vocabulary = vocabulary
        self._orders = orders
        self._backends: dict[str, GrammarBackend] = {}

    def warm(self, name: str) -> GrammarBackend:
        backend = self._backends.get(name)
        if backend is None:
            backend = self._backends[name] = BACKENDS.load(name)(self._vocabulary)
            gc.collect()
            gc.freeze()  # a collection in a fork would copy all pages that they share
        return backend

    def run(self, order: wire.Try) -> wire.Outcome:
        """Try it out in a fork, which does not outlive this call. EOFError when nobody waits for the outcome."""
        backend = self.warm(order.backend)
        reading, writing = os.pipe()
        process_id = os.fork()
        if process_id == 0:
            os.close(reading)
            self._be_tried(backend, order, writing)
        os.close(writing)
        try:
            outcome = self._outcome(reading, order.wall_s)
        finally:
            os.close(reading)
            os.kill(process_id, signal.SIGKILL)
            _, status = os.waitpid(process_id, 0)
        return outcome or _cause_of_death(status)

    def _outcome(self, reading: int, wall_s: float) -> wire.Outcome | None:
        """What the fork says; None when it dies without a word."""
        ready, _, _ = select.select([reading, self._orders], [], [], wall_s)
        if self._orders in ready:
            raise EOFError
        if not ready:
            return wire.Outcome("too late")
        try:
            return msgspec.msgpack.decode(wire.read(reading), type=wire.Outcome)
        except EOFError:
            return None

    def _be_tried(self, backend: GrammarBackend, order: wire.Try, writing: int) -> NoReturn:
        """In the fork. The kernel ends it at the first moment of processor time too much."""
        status = 1
        try:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_AS, (_address_space_bytes() + MEMORY_BYTES, resource.RLIM_INFINITY))
            signal.setitimer(signal.ITIMER_PROF, order.cpu_s)
            outcome = judged(backend, order, self._vocabulary)
            signal.setitimer(signal.ITIMER_PROF, 0)
            wire.write(writing, wire.encode(outcome))
            status = 0
        finally:
            os._exit(status)


def judged(backend: GrammarBackend, order: wire.Try, vocabulary: Vocabulary) -> wire.Outcome:
    """Whether the grammar can be used."""
    try:
        walk(backend.compile(order.source), vocabulary)
    except GrammarUnsupported as error:
        return wire.Outcome("unsupported", str(error))
    except GrammarError as error:
        return wire.Outcome("bad", str(error))
    except MemoryError:
        return wire.Outcome("bad", f"it needs more than {MEMORY_BYTES >> 20} MiB")
    except Exception as error:  # a library's own trouble with it
        print(f"{order.backend}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return wire.Outcome("bad", f"the {order.backend} library cannot compile it")
    return wire.Outcome()


def walk(grammar: Grammar, vocabulary: Vocabulary) -> None:
    """Follow some answer for a while. GrammarError when there is none, or when a token takes too long."""
    matcher, draw = grammar.matcher(), random.Random(0)
    mask = np.zeros(vocabulary.words, np.int32)
    for step in range(WALK_TOKENS):
        began = time.thread_time()
        matcher.fill(mask)
        spent_s = time.thread_time() - began
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little", count=vocabulary.size)
        bits[list(vocabulary.stop_ids)] = 0
        tokens = np.flatnonzero(bits)
        if not len(tokens):
            if step == 0 and not matcher.may_end():
                raise GrammarError("it allows nothing that this model can say")
            return
        began = time.thread_time()
        if not matcher.accept(int(tokens[draw.randrange(len(tokens))])):
            raise GrammarError("it refuses what it allows")
        if spent_s + time.thread_time() - began > STEP_LIMIT_S:
            raise GrammarError(f"it is too complex: one token takes more than {STEP_LIMIT_S:g} s")


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 1 << 21
    return pages * resource.getpagesize()


def _cause_of_death(status: int) -> wire.Outcome:
    """Of a fork that has not said all; `status` as waitpid gives it."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return wire.Outcome("too heavy")
    return wire.Outcome("bad", "it is more than the compiler can take")


def main() -> None:
    """Orders come on standard input, one after the other; its end ends the process, and a trial with it."""
    os.nice(YIELDING)
    orders, out = sys.stdin.fileno(), os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not get between the frames
    try:
        hello = msgspec.msgpack.decode(wire.read(orders), type=wire.Order)
        assert isinstance(hello, wire.Hello)
        trials = Trials(hello.vocabulary, orders)
        while True:
            order = msgspec.msgpack.decode(wire.read(orders), type=wire.Order)
            outcome = wire.Outcome()
            if isinstance(order, wire.Try):
                outcome = trials.run(order)
            elif isinstance(order, wire.Warm):
                trials.warm(order.backend)
            wire.write(out, wire.encode(outcome))
    except (EOFError, BrokenPipeError):
        os._exit(0)


if __name__ == "__main__":
    main()

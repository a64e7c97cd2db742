"""The trial process: it compiles what nobody trusts yet, and may be killed. Run as a module; knows pipes only.

A grammar that takes too long, too much memory, or the whole process with it does so here.
"""

import os
import queue
import random
import resource
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np

from radixlm.grammar import wire
from radixlm.grammar.base import YIELDING, Grammar, GrammarBackend, GrammarError, Vocabulary
from radixlm.grammar.table import BACKENDS

MEMORY_BYTES = 2 << 30  # on top of what the process has once its libraries are loaded
WALK_TOKENS = 32
STEP_LIMIT_S = 0.25  # a token's mask may take so long


class Trials:
    """Backends by name, made on first use."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._backends: dict[str, GrammarBackend] = {}

    def warm(self, name: str) -> GrammarBackend:
        backend = self._backends.get(name)
        if backend is None:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            backend = self._backends[name] = BACKENDS.load(name)(self._vocabulary)
            limit = _address_space_bytes() + MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        return backend

    def run(self, order: wire.Try) -> str | None:
        """Why the grammar cannot be used, or None."""
        try:
            walk(self.warm(order.backend).compile(order.source), self._vocabulary)
        except GrammarError as error:
            return str(error)
        except MemoryError:
            return f"it needs more than {MEMORY_BYTES >> 20} MiB"
        except Exception as error:  # a library's own trouble with it
            return f"it cannot be compiled: {type(error).__name__}: {error}".splitlines()[0]
        return None


def walk(grammar: Grammar, vocabulary: Vocabulary) -> None:
    """Follow some answer for a while. GrammarError when there is none, or when its masks take too long."""
    matcher, draw = grammar.matcher(), random.Random(0)
    mask = np.zeros(vocabulary.words, np.int32)
    for step in range(WALK_TOKENS):
        began = time.thread_time()
        matcher.fill(mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little", count=vocabulary.size)
        bits[list(vocabulary.stop_ids)] = 0
        tokens = np.flatnonzero(bits)
        if not len(tokens):
            if step == 0 and not matcher.may_end():
                raise GrammarError("it allows nothing that this model can say")
            return
        if not matcher.accept(int(tokens[draw.randrange(len(tokens))])):
            raise GrammarError("it refuses what it allows")
        if time.thread_time() - began > STEP_LIMIT_S:
            raise GrammarError(f"it is too complex: a token takes more than {STEP_LIMIT_S:g} s")


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 1 << 21
    return pages * resource.getpagesize()


def _serve(orders: "queue.SimpleQueue[bytes]", out: int) -> None:
    hello = msgspec.msgpack.decode(orders.get(), type=wire.Order)
    assert isinstance(hello, wire.Hello)
    trials = Trials(hello.vocabulary)
    while True:
        order = msgspec.msgpack.decode(orders.get(), type=wire.Order)
        error = None
        if isinstance(order, wire.Try):
            error = trials.run(order)
        elif isinstance(order, wire.Warm):
            trials.warm(order.backend)
        wire.write(out, wire.encode(wire.Outcome(error)))


def main() -> None:
    """Orders come on standard input and are read on a thread of their own, so that its end ends the process at once."""
    os.nice(YIELDING)
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not get between the frames
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_serve_or_leave, args=(orders, out), name="trials", daemon=True).start()
    try:
        while True:
            orders.put(wire.read(sys.stdin.fileno()))
    except EOFError:
        os._exit(0)


def _serve_or_leave(orders: "queue.SimpleQueue[bytes]", out: int) -> None:
    try:
        _serve(orders, out)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()

"""Which core each thread that computes runs on. Knows threads and cores, no model.

The threads of a kernel wait for each other. Once the system has put two of them on one core, each wakes the other
there and goes to sleep: at no moment do two of them want to run, so nothing moves them apart, and the other core idles.
"""

import os
import sys
import threading
from dataclasses import dataclass

import torch

PARALLEL_ELEMENTS = 1 << 16  # for each thread: enough that torch divides a loop among all of them


@dataclass(frozen=True)
class Team:
    """The threads that torch and the native kernels compute with, by the system's ids, the calling one first."""

    threads: tuple[int, ...]

    @staticmethod
    def muster(count: int) -> "Team":
        """Let torch compute with `count` threads from now on, and start them. Off Linux they are not known."""
        torch.set_num_threads(count)
        before = _threads()
        torch.zeros(count * PARALLEL_ELEMENTS).add_(1.0)
        return Team((threading.get_native_id(), *sorted(_threads() - before)))

    def settle(self) -> bool:
        """Give each of them a core of its own, for good, if it takes all cores that this process may use: with fewer,
        or with threads that stood before, which core is free is the system's to know. Whether it was done.

        What the calling thread starts from here on stays on its core too, unless it says otherwise.
        """
        if sys.platform != "linux" or len(self.threads) < 2:
            return False
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) != len(self.threads):
            return False
        try:
            for thread, core in zip(self.threads, cores, strict=True):
                os.sched_setaffinity(thread, {core})
        except OSError:  # a sandbox may forbid it
            return False
        return True


def _threads() -> set[int]:
    """The ids of this process's threads; none off Linux."""
    return {int(name) for name in os.listdir("/proc/self/task")} if sys.platform == "linux" else set()

"""A clock for deadlines that stands still while libraries are loaded: no grammar's fault. Knows nobody."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Seconds, as `monotonic` counts them outside of `stopped` blocks. Any thread may use it."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._stops = 0
        self._stopped_at_s = 0.0
        self._lost_s = 0.0

    def now_s(self) -> float:
        with self._lock:
            return (self._stopped_at_s if self._stops else self._monotonic()) - self._lost_s

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Time does not pass inside. Blocks may overlap."""
        with self._lock:
            if not self._stops:
                self._stopped_at_s = self._monotonic()
            self._stops += 1
        try:
            yield
        finally:
            with self._lock:
                self._stops -= 1
                if not self._stops:
                    self._lost_s += self._monotonic() - self._stopped_at_s

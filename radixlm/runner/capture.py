"""What every capture of CUDA graphs needs: a stream of its own, no garbage collection, and an account of its cost."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from radixlm.base import log
from radixlm.base.progress import watched
from radixlm.runner.memory import free_device_bytes

logger = log.get(__name__)


@dataclass(frozen=True)
class CaptureReport:
    """What capturing took: device memory counts the driver's own share too."""

    sizes: tuple[int, ...]
    seconds: float
    bytes: int


class GraphPool:
    """Memory for graphs that never run at the same time and keep nothing in it from one run to the next.

    They are all captured on one stream: memory freed on a stream is found again on that stream only.
    """

    def __init__(self) -> None:
        self.handle: Any = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture_all(self, sizes: tuple[int, ...], capture: Callable[[int], None]) -> CaptureReport:
        """Call `capture` with every size, the largest first, so that the others fit into its memory."""
        torch.cuda.empty_cache()
        began, free_bytes = time.monotonic(), free_device_bytes()
        self._stream.wait_stream(torch.cuda.current_stream())
        with _without_gc(), torch.inference_mode(), torch.cuda.stream(self._stream):
            for size in watched(sizes[::-1], "capturing graphs", len(sizes), logger):
                capture(size)
        torch.cuda.current_stream().wait_stream(self._stream)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what the runs before each capture left
        taken_bytes = max(free_bytes - free_device_bytes(), 0)
        return CaptureReport(sizes, time.monotonic() - began, taken_bytes)


class Recorder:
    """Captures one piece of work after another; to be used inside `GraphPool.capture_all`."""

    def __init__(self, pool: GraphPool) -> None:
        self._pool = pool
        self._graph: torch.cuda.CUDAGraph | None = None

    def begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(self._pool.handle, capture_error_mode="thread_local")

    def end(self) -> torch.cuda.CUDAGraph:
        """What was launched since `begin`."""
        graph, self._graph = self._graph, None
        assert graph is not None
        graph.capture_end()
        return graph

    @contextmanager
    def closing(self) -> Iterator[None]:
        """The body may fail in the midst of a capture without leaving the stream in it."""
        try:
            yield
        finally:
            if self._graph is not None:
                self.end()


@contextmanager
def _without_gc() -> Iterator[None]:
    """No garbage collection: freeing a tensor at a random moment would break a capture."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

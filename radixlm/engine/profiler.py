"""A torch profiler around the loop's steps, started and stopped by control verbs. Knows no scheduler and no model."""

import os
import time
from pathlib import Path

import torch

from radixlm.base import log
from radixlm.base.errors import RequestError
from radixlm.protocol.control import StartProfileReq

logger = log.get(__name__)
FOLDER_VARIABLE = "SGLANG_TORCH_PROFILER_DIR"  # where traces go when the request names no folder
ACTIVITIES = {"CPU": torch.profiler.ProfilerActivity.CPU, "GPU": torch.profiler.ProfilerActivity.CUDA}


class StepProfiler:
    """Records from `start` until `stop`, or until the asked number of steps is over; then writes one Chrome trace."""

    def __init__(self) -> None:
        self._profiler: torch.profiler.profile | None = None
        self._path = Path()
        self._wait_steps = 0
        self._left_steps: int | None = None

    @property
    def active(self) -> bool:
        """Whether `stepped` has to be called."""
        return self._profiler is not None

    def start(self, request: StartProfileReq) -> Path:
        """Returns where the trace will be. RequestError when one is being recorded, or for what cannot be recorded."""
        if self._profiler is not None:
            raise RequestError("Profiling is already in progress. Call /stop_profile first.")
        kinds = [ACTIVITIES[name] for name in request.activities or ("CPU", "GPU") if name in ACTIVITIES]
        if not torch.cuda.is_available():
            kinds = [kind for kind in kinds if kind is not torch.profiler.ProfilerActivity.CUDA]
        if not kinds:
            raise RequestError("activities has none that this machine can record", "activities")
        folder = Path(request.output_dir or os.environ.get(FOLDER_VARIABLE) or "/tmp")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RequestError(f"output_dir {folder} cannot be made: {error.strerror}", "output_dir") from None
        parts = (request.profile_prefix, request.profile_id or f"{time.time():.6f}", "TP-0.trace.json.gz")
        self._path = folder / "-".join(part for part in parts if part)
        self._profiler = torch.profiler.profile(
            activities=kinds, record_shapes=bool(request.record_shapes), with_stack=bool(request.with_stack)
        )
        self._wait_steps, self._left_steps = request.start_step or 0, request.num_steps
        if not self._wait_steps:
            self._profiler.start()
        logger.info("profiling to %s", self._path)
        return self._path

    def stepped(self) -> None:
        """A step has been committed."""
        if self._profiler is None:
            return
        if self._wait_steps:
            self._wait_steps -= 1
            if not self._wait_steps:
                self._profiler.start()
        elif self._left_steps is not None:
            self._left_steps -= 1
            if self._left_steps <= 0:
                self.stop()

    def stop(self) -> Path:
        """Write the trace and return its path. RequestError when nothing was being recorded."""
        if self._profiler is None:
            raise RequestError("Profiling is not in progress. Call /start_profile first.")
        profiler, self._profiler = self._profiler, None
        if self._wait_steps:
            raise RequestError("Profiling was stopped before its start_step; there is no trace.")
        profiler.stop()
        profiler.export_chrome_trace(str(self._path))
        logger.info("profile written to %s", self._path)
        return self._path

"""What each control verb does to the scheduler: one function per row of protocol/control.py."""

import os
import time
from collections.abc import Callable

import msgspec
from torch import Tensor

from radixlm.base.errors import RequestError
from radixlm.engine.profiler import StepProfiler
from radixlm.protocol import control
from radixlm.protocol.messages import ControlReply, ControlReq
from radixlm.scheduler.scheduler import Scheduler

EMPTY_MAP = b"\x80"  # in msgpack


class Controls:
    """Answers control requests between two steps of the loop."""

    def __init__(self, scheduler: Scheduler, profiler: StepProfiler, weight: Callable[[str], Tensor | None]) -> None:
        """`weight` gives a weight by its checkpoint name, None for a name that the model does not have."""
        self._scheduler = scheduler
        self._profiler = profiler
        self._weight = weight
        self._handlers: dict[str, Callable[[msgspec.Struct, float], msgspec.Struct]] = {
            "flush_cache": self._flush_cache,
            "pause_generation": self._pause_generation,
            "continue_generation": self._continue_generation,
            "internal_state": self._internal_state,
            "start_profile": self._start_profile,
            "stop_profile": self._stop_profile,
            "get_weights_by_name": self._get_weights_by_name,
            "tree": self._tree,
        }

    def answer(self, request: ControlReq, now: float) -> ControlReply:
        """Run the verb; a refusal or an unknown verb becomes an error reply, never an exception."""
        verb = control.BY_NAME.get(request.verb)
        handler = self._handlers.get(request.verb)
        if verb is None or handler is None:
            return ControlReply(request.call, error=f"unknown control verb {request.verb!r}", status=404)
        try:
            body = msgspec.msgpack.decode(request.body or EMPTY_MAP, type=verb.request)
            return ControlReply(request.call, msgspec.msgpack.encode(handler(body, now)))
        except RequestError as error:
            return ControlReply(request.call, error=error.message, status=error.status)
        except msgspec.ValidationError as error:
            return ControlReply(request.call, error=str(error), status=400)

    def _flush_cache(self, _: msgspec.Struct, now: float) -> msgspec.Struct:
        return self._scheduler.flush_cache(now)

    def _pause_generation(self, request: msgspec.Struct, now: float) -> msgspec.Struct:
        assert isinstance(request, control.PauseReq)
        if request.mode != "abort":
            self._scheduler.pause(retract=request.mode == "retract")
        return control.DoneReply("Generation paused successfully.")

    def _continue_generation(self, _: msgspec.Struct, now: float) -> msgspec.Struct:
        self._scheduler.resume()
        return control.DoneReply("Generation continued successfully.")

    def _start_profile(self, request: msgspec.Struct, now: float) -> msgspec.Struct:
        assert isinstance(request, control.StartProfileReq)
        return control.TraceReply(str(self._profiler.start(request)))

    def _stop_profile(self, _: msgspec.Struct, now: float) -> msgspec.Struct:
        return control.TraceReply(str(self._profiler.stop()))

    def _get_weights_by_name(self, request: msgspec.Struct, now: float) -> msgspec.Struct:
        assert isinstance(request, control.WeightReq)
        weight = self._weight(request.name)
        if weight is None:
            raise RequestError("Get parameter by name failed", "name")
        return control.WeightReply(weight[: request.truncate_size].float().cpu().tolist())

    def _tree(self, request: msgspec.Struct, now: float) -> msgspec.Struct:
        assert isinstance(request, control.TreeReq)
        return self._scheduler.tree(request.most, request.head_tokens)

    def _internal_state(self, _: msgspec.Struct, now: float) -> msgspec.Struct:
        stats = msgspec.to_builtins(self._scheduler.stats(now))
        for name in ("type", "stage_s_total", "passes_total"):
            stats.pop(name, None)
        return control.InternalStateReply({**stats, "process_cpu_s_total": time.process_time(), "pid": os.getpid()})

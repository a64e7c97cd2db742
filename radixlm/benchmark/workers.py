"""Client processes: the load split over several Python processes, plans and results passed as msgpack over pipes.

A worker is `python -m radixlm.benchmark.workers`. It reads a plan and says so; reads the start time, which all workers
share, and sends the load; then writes its result. Frames are a 4-byte length (little-endian) and a msgpack body.
"""

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from radixlm.base.errors import RadixError
from radixlm.benchmark.load import LoadResult, Plan, Progress, conversations, run_load
from radixlm.benchmark.outcome import Outcome

T = TypeVar("T")
START_DELAY_S = 0.05  # for the start time to reach every worker before it comes


class _Frame(msgspec.Struct, omit_defaults=True):
    """What a worker says: it is ready (neither field set), how far it is, or what it measured."""

    progress: Progress | None = None
    result: LoadResult | None = None


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run on uvloop where it is installed, else on asyncio's own loop."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


@dataclass(frozen=True)
class Measured:
    """What all client processes measured together. `cpu_percent`: of one core, of the busiest process."""

    outcomes: list[Outcome]
    start_s: float
    cpu_percent: float
    cpu_s: float


def split_plan(plan: Plan, processes: int) -> list[Plan]:
    """Every `processes`-th conversation for each worker, at the whole plan's times; the concurrency limit is shared
    out."""
    plans = []
    every = conversations(plan.requests)
    for worker in range(processes):
        limit = plan.max_concurrency
        share = None if limit is None else limit // processes + (worker < limit % processes)
        mine = [i for turns in every[worker::processes] for i in turns]
        plans.append(
            msgspec.structs.replace(
                plan,
                requests=[plan.requests[i] for i in mine],
                indices=[plan.indices[i] for i in mine],
                arrivals_s=[plan.arrivals_s[i] for i in mine],
                max_concurrency=share,
            )
        )
    return plans


async def measure(plan: Plan, processes: int, on_progress: Callable[[Progress], None] | None = None) -> Measured:
    """Carry out `plan` with so many client processes; one runs here, without starting any. RadixError if one dies."""
    if processes == 1:
        results = [await run_load(plan, None, on_progress)]
    else:
        results = await _run_workers(split_plan(plan, processes), on_progress)
    start_s = min(result.start_s for result in results)
    shares = [100.0 * result.cpu_s / max(result.end_s - result.start_s, 1e-9) for result in results]
    outcomes = sorted((o for result in results for o in result.outcomes), key=lambda o: o.index)
    return Measured(outcomes, start_s, max(shares), sum(result.cpu_s for result in results))


async def _run_workers(plans: list[Plan], on_progress: Callable[[Progress], None] | None) -> list[LoadResult]:
    command = [sys.executable, "-m", "radixlm.benchmark.workers"]
    workers: list[Process] = []
    try:
        for _ in plans:
            workers.append(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE))
        await asyncio.gather(*(_write(w, plan) for w, plan in zip(workers, plans, strict=True)))
        await asyncio.gather(*(_read(worker) for worker in workers))  # all are ready
        start_s = time.perf_counter() + START_DELAY_S
        await asyncio.gather(*(_write(worker, start_s) for worker in workers))
        states = [Progress() for _ in plans]
        return await asyncio.gather(*(_follow(w, states, i, on_progress) for i, w in enumerate(workers)))
    finally:
        for worker in workers:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()


async def _follow(
    worker: Process, states: list[Progress], index: int, on_progress: Callable[[Progress], None] | None
) -> LoadResult:
    while True:
        frame = await _read(worker)
        if frame.result is not None:
            return frame.result
        if frame.progress is not None:
            states[index] = frame.progress
            if on_progress is not None:
                total = Progress(
                    sum(s.done for s in states), sum(s.failed for s in states), sum(s.in_flight for s in states)
                )
                on_progress(total)


async def _write(worker: Process, message: Plan | float) -> None:
    assert worker.stdin is not None
    try:
        worker.stdin.write(_framed(message))
        await worker.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        raise RadixError("a client process ended before its load was sent") from None


async def _read(worker: Process) -> _Frame:
    assert worker.stdout is not None
    try:
        size = int.from_bytes(await worker.stdout.readexactly(4), "little")
        return msgspec.msgpack.decode(await worker.stdout.readexactly(size), type=_Frame)
    except asyncio.IncompleteReadError:
        raise RadixError(f"a client process ended early (exit status {await worker.wait()})") from None


def _framed(message: Any) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "little") + body


def _read_input() -> bytes:
    size = int.from_bytes(sys.stdin.buffer.read(4), "little")
    return sys.stdin.buffer.read(size)


def _say(frame: _Frame) -> None:
    try:
        sys.stdout.buffer.write(_framed(frame))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)  # whoever wanted this load has gone


def worker_main(argv: Sequence[str]) -> int:
    """One client process, from its plan on stdin to its result on stdout. Exit 2: no plan came, or words did."""
    if argv or not (words := _read_input()):
        print("error: radixlm bench starts this by itself and tells it what to send", file=sys.stderr)
        return 2
    plan = msgspec.msgpack.decode(words, type=Plan)
    _say(_Frame())
    start_s = msgspec.msgpack.decode(_read_input(), type=float)
    result = run_async(run_load(plan, start_s, lambda progress: _say(_Frame(progress=progress))))
    _say(_Frame(result=result))
    # An event loop may drop what a pipe still holds when the process at its other end exits: stay until it is read.
    sys.stdin.buffer.read()
    return 0


if __name__ == "__main__":
    sys.exit(worker_main(sys.argv[1:]))

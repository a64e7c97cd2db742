"""Sends requests at their arrival times and records what comes back. Knows neither datasets nor statistics."""

import asyncio
import gc
import itertools
import resource
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import msgspec
import numpy as np

from radixlm.benchmark.backends import Backend, BodySettings, backend_named, continued, encode_body
from radixlm.benchmark.http1 import HttpClient, HttpFailure, Target
from radixlm.benchmark.outcome import Outcome, Request
from radixlm.benchmark.readers import AnswerReceiver

REQUEST_TIMEOUT_S = 6 * 3600.0
PROGRESS_EVERY_S = 1.0


class Plan(msgspec.Struct):
    """What one client process has to send. `arrivals_s[i]`: when request i is due, seconds after the start; a later
    turn is due when the one before it has ended."""

    target: Target
    backend: str
    body: BodySettings
    requests: list[Request]
    indices: list[int]
    arrivals_s: list[float]
    max_concurrency: int | None = None


class Progress(msgspec.Struct):
    """How far one client process is."""

    done: int = 0
    failed: int = 0
    in_flight: int = 0

    def count(self, outcome: Outcome) -> None:
        self.done += 1
        self.failed += outcome.error is not None


class LoadResult(msgspec.Struct):
    """What a client process measured. `cpu_s`: its own user and system time between the start and its last answer."""

    outcomes: list[Outcome]
    start_s: float
    end_s: float
    cpu_s: float


def arrivals(count: int, rate_per_s: float, seed: int) -> list[float]:
    """When each of `count` requests is due, in seconds: the first at 0, then a Poisson process; all at 0 if inf."""
    if rate_per_s == float("inf"):
        return [0.0] * count
    gaps = np.random.default_rng([seed, 1]).exponential(1.0 / rate_per_s, max(count - 1, 0))
    return [0.0, *np.cumsum(gaps).tolist()][:count]


def arrivals_of(requests: Sequence[Request], rate_per_s: float, seed: int) -> list[float]:
    """When each request is due: as its trace says, else by `arrivals`; the turns of a conversation arrive as one."""
    starts = [i for i, request in enumerate(requests) if not request.follows]
    drawn = deque(arrivals(len(starts), rate_per_s, seed))
    due_s: list[float] = []
    for request in requests:
        if not request.follows:
            due_s.append(drawn.popleft() if request.due_s is None else request.due_s)
        else:
            due_s.append(due_s[-1])
    return due_s


def conversations(requests: Sequence[Request]) -> list[range]:
    """The places of each conversation's turns; most have one."""
    starts = [i for i, request in enumerate(requests) if not request.follows]
    return [range(start, end) for start, end in itertools.pairwise([*starts, len(requests)])]


async def send_one(
    client: HttpClient, backend: Backend, request: Request, body: BodySettings, outcome: Outcome
) -> None:
    """One request from sending to its last byte, recorded in `outcome`. Never raises for what a server may do."""
    wire = client.target.request("POST", backend.path, encode_body(backend, request, body))
    receiver = AnswerReceiver(backend.reader(), body.stream)
    outcome.output_tokens = request.output_tokens
    outcome.sent_s = time.perf_counter()
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            await client.exchange(wire, receiver)
    except HttpFailure as failure:
        outcome.error = str(failure)
    except TimeoutError:
        outcome.error = f"no complete answer within {REQUEST_TIMEOUT_S:g} s"
    if receiver.status:
        receiver.finish(outcome)
    else:
        outcome.end_s = time.perf_counter()


async def run_load(
    plan: Plan, start_s: float | None = None, on_progress: Callable[[Progress], None] | None = None
) -> LoadResult:
    """Carry out `plan`. `start_s`, on the clock of time.perf_counter, may lie in the future; None starts now."""
    client = HttpClient(plan.target)
    backend = backend_named(plan.backend)
    limit = asyncio.Semaphore(plan.max_concurrency) if plan.max_concurrency else nullcontext()
    progress = Progress()
    outcomes = [Outcome(index) for index in plan.indices]
    gc.collect()
    gc.freeze()  # keep the dataset out of collections during the run
    start_s = time.perf_counter() if start_s is None else start_s
    await asyncio.sleep(start_s - time.perf_counter())
    cpu_before_s = cpu_s()

    async def converse(turns: range) -> None:
        async with limit:
            sent: Request | None = None
            for i in turns:
                request, outcome = plan.requests[i], outcomes[i]
                if sent is not None:
                    before = outcomes[i - 1]
                    outcome.due_s = time.perf_counter()
                    request = continued(backend, sent, before.text, request)
                    if before.error is not None:
                        outcome.sent_s = outcome.end_s = outcome.due_s
                        outcome.error = "not sent: the turn before it failed"
                        progress.count(outcome)
                        continue
                progress.in_flight += 1
                await send_one(client, backend, request, plan.body, outcome)
                progress.in_flight -= 1
                progress.count(outcome)
                sent = request

    reporter = asyncio.create_task(_report(progress, on_progress)) if on_progress is not None else None
    try:
        async with asyncio.TaskGroup() as group:
            for turns in conversations(plan.requests):
                due_s = outcomes[turns[0]].due_s = start_s + plan.arrivals_s[turns[0]]
                if (wait_s := due_s - time.perf_counter()) > 0:
                    await asyncio.sleep(wait_s)
                group.create_task(converse(turns))
        return LoadResult(outcomes, start_s, time.perf_counter(), cpu_s() - cpu_before_s)
    finally:
        gc.unfreeze()
        client.close()
        if reporter is not None:
            reporter.cancel()


def cpu_s() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def _report(progress: Progress, on_progress: Callable[[Progress], None]) -> None:
    while True:
        await asyncio.sleep(PROGRESS_EVERY_S)
        on_progress(progress)

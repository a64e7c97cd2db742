"""A scheduler's life as a file, and its exact repetition: `python -m radixlm.scheduler.replay FILE`.

The file holds length-prefixed msgpack records: how the scheduler was made, then every call with its arguments, time
included, and the plans that came out. Knows the scheduler from outside only.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from radixlm.cache.manager import CacheManager
from radixlm.config.groups import ScheduleConfig
from radixlm.protocol import messages
from radixlm.protocol.control import FlushCacheReply
from radixlm.protocol.messages import AbortReq, ReleaseReq, TokenizedGenerateReqInput
from radixlm.protocol.plan import StepPlan, StepResult
from radixlm.scheduler.limits import SchedulerLimits
from radixlm.scheduler.scheduler import Scheduler


class Made(msgspec.Struct, frozen=True, tag=True):
    """What the scheduler was made of."""

    config: ScheduleConfig
    limits: SchedulerLimits
    num_pages: int
    page_size: int
    radix: bool
    eviction: str
    eviction_options: dict[str, int]
    token_bytes: list[bytes] | None


class Planned(msgspec.Struct, frozen=True, tag=True):
    """A call of `plan`: encoded messages in, encoded StepPlan (or nothing) out."""

    now: float
    events: list[bytes]
    plan: bytes | None


class Committed(msgspec.Struct, frozen=True, tag=True):
    """A call of `commit` with an encoded StepResult."""

    now: float
    result: bytes


class Flushed(msgspec.Struct, frozen=True, tag=True):
    """A call of `flush_cache`."""

    now: float


class Paused(msgspec.Struct, frozen=True, tag=True):
    """A call of `pause`."""

    retract: bool


class Resumed(msgspec.Struct, frozen=True, tag=True):
    """A call of `resume`."""


Record = Made | Planned | Committed | Flushed | Paused | Resumed


class RecordingScheduler(Scheduler):
    """A Scheduler that writes every deciding call to `log` before it is made, and the plans after."""

    def __init__(
        self,
        config: ScheduleConfig,
        cache: CacheManager,
        limits: SchedulerLimits,
        token_bytes: Sequence[bytes] | None,
        log: BinaryIO,
    ) -> None:
        super().__init__(config, cache, limits, token_bytes)
        self._log = log
        table = list(token_bytes) if token_bytes is not None else None
        eviction = (cache.eviction, cache.eviction_options)
        self._write(Made(config, limits, cache.num_pages, cache.page_size, cache.radix, *eviction, table))

    def plan(self, events: Sequence[TokenizedGenerateReqInput | AbortReq | ReleaseReq], now: float) -> StepPlan | None:
        encoded = [messages.encode(event) for event in events]
        try:
            plan = super().plan(events, now)
        except Exception:
            self._write(Planned(now, encoded, None))
            raise
        self._write(Planned(now, encoded, plan.encode() if plan is not None else None))
        return plan

    def commit(self, result: StepResult, now: float) -> None:
        self._write(Committed(now, result.encode()))
        super().commit(result, now)

    def flush_cache(self, now: float) -> FlushCacheReply:
        self._write(Flushed(now))
        return super().flush_cache(now)

    def pause(self, retract: bool) -> None:
        self._write(Paused(retract))
        super().pause(retract)

    def resume(self) -> None:
        self._write(Resumed())
        super().resume()

    def _write(self, record: Record) -> None:
        body = msgspec.msgpack.encode(record)
        self._log.write(len(body).to_bytes(4, "little") + body)


def read(data: bytes) -> Iterator[Record]:
    """The records of a log; one that was cut off at the end is left out."""
    at = 0
    while at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if end > len(data):
            return
        yield msgspec.msgpack.decode(data[at + 4 : end], type=Record)
        at = end


def replay(data: bytes) -> tuple[int, str | None]:
    """Make every call of a log again. Returns how many, and what was first wrong: a plan that differs by a byte, books
    that do not balance, or None. Exceptions of the scheduler are the caller's.
    """
    records = read(data)
    made = next(records, None)
    if not isinstance(made, Made):
        return 0, "the log does not begin with how the scheduler was made"
    cache = CacheManager(
        made.num_pages,
        made.page_size,
        radix=made.radix,
        eviction=made.eviction,
        eviction_options=made.eviction_options,
    )
    scheduler = Scheduler(made.config, cache, made.limits, made.token_bytes)
    calls = 0
    for record in records:
        calls += 1
        match record:
            case Planned():
                plan = scheduler.plan([_event(raw) for raw in record.events], record.now)
                if (plan.encode() if plan is not None else None) != record.plan:
                    return calls, f"call {calls}: the plan differs from the recorded one"
            case Committed():
                scheduler.commit(StepResult.decode(record.result), record.now)
            case Flushed():
                scheduler.flush_cache(record.now)
            case Paused():
                scheduler.pause(record.retract)
            case Resumed():
                scheduler.resume()
        scheduler.take_output()
        problems = scheduler.check()
        if problems:
            return calls, f"call {calls}: {'; '.join(problems)}"
    return calls, None


def _event(raw: bytes) -> TokenizedGenerateReqInput | AbortReq:
    message = messages.decode(raw)
    if not isinstance(message, TokenizedGenerateReqInput | AbortReq):
        raise ValueError(f"{type(message).__name__} is no scheduler event")
    return message


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m radixlm.scheduler.replay FILE", file=sys.stderr)
        return 2
    try:
        recorded = Path(arguments[0]).read_bytes()
    except OSError as error:
        print(f"{arguments[0]}: {error.strerror}", file=sys.stderr)
        return 2
    calls, problem = replay(recorded)
    print(f"{calls} calls repeated: {problem or 'all plans equal, byte for byte'}")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`radixlm profile TRACE`: where a step's time goes, by a torch profiler's Chrome trace. Knows no tensor.

Traces come from the server's /start_profile, or from `python -m radixlm.engine.step_cost --trace`. Kernels are grouped
by what they do; a device gap is time in which nothing ran on it, and is put down to the kernel that ended it. A trace
without a device, such as a CPU server's, is told by the host's operators.
"""

import argparse
import gzip
import math
import re
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from radixlm.base.errors import RadixError

GZIP = b"\x1f\x8b"
DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_KINDS = ("cpu_op", "user_annotation")
LAUNCHES = re.compile(r"cu(da)?(Launch|GraphLaunch|Memcpy|Memset)")
WAITS = re.compile(r"cu(da)?(Event|Stream|Device|Ctx)Synchronize")
SMALL_GAP_US = 3.0  # between kernels that follow one another at once
MOST_US = 1e18  # 30,000 years
# What a kernel does, by its name; the first that matches.
GROUPS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (group, re.compile(pattern, re.IGNORECASE))
    for group, pattern in (
        ("copies", r"^mem(cpy|set)|copy_kernel|memcpy32"),
        ("decode attention", r"^_decode|^_cut_rows|^_attend_shared|decode.*paged|paged.*decode"),
        ("prompt attention", r"^_prefill|prefill|flash|fmha|attention"),
        ("matrix products", r"nvjet|gemm|cutlass|cublas|splitk|gemv|^_(matmul|row|several)$"),
        ("norms", r"norm"),
        ("rotary and storing", r"rotary|^_rotate"),
        ("activations", r"silu|gelu|sigmoid|^_gate_mul"),
        ("sampling", r"^_scan|^_check|^_choose|^_apply|^_penalize|^_sum_|argmax|softmax|topk|sort"),
        ("gathers and scatters", r"gather|scatter|index|^_flatten"),
    )
)
OTHER = "other"


class Event(msgspec.Struct, frozen=True):
    """What is read of a trace's event. Times in microseconds: NaN, which JSON lacks, where it has none."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: Annotated[float, msgspec.Meta(ge=-MOST_US, le=MOST_US)] = math.nan
    dur: Annotated[float, msgspec.Meta(ge=0, le=MOST_US)] = math.nan

    def __post_init__(self) -> None:
        if self.complete and math.isnan(self.ts + self.dur):
            raise ValueError("A complete event needs `ts` and `dur`")

    @property
    def complete(self) -> bool:
        """Whether it stands for a stretch of time; all others are marks, names and arrows."""
        return self.ph == "X"

    @property
    def end(self) -> float:
        return self.ts + self.dur


class _Document(msgspec.Struct):
    events: list[Event] = msgspec.field(name="traceEvents")


_trace = msgspec.json.Decoder(_Document | list[Event])


@dataclass
class Share:
    """Microseconds and calls of one kernel, or of a group of them."""

    us: float = 0.0
    calls: int = 0

    def add(self, us: float) -> None:
        self.us += us
        self.calls += 1


@dataclass
class Breakdown:
    """What a trace says: `span_us` from the first device event to the last's end, of it `busy_us` with any running.

    `gaps` are the larger ones, by the kernel that ended them; `small_gaps` all others. `host` are calls of the driver.
    """

    span_us: float = 0.0
    busy_us: float = 0.0
    groups: dict[str, Share] = field(default_factory=lambda: defaultdict(Share))
    kernels: dict[str, Share] = field(default_factory=lambda: defaultdict(Share))
    gaps: dict[str, Share] = field(default_factory=lambda: defaultdict(Share))
    small_gaps: Share = field(default_factory=Share)
    host: dict[str, Share] = field(default_factory=lambda: defaultdict(Share))


@dataclass
class Operator(Share):
    """An operator of the host: `us` are its own, without those that it called; `total_us` with them."""

    total_us: float = 0.0


S = TypeVar("S", bound=Share)


@dataclass
class HostBreakdown:
    """What the host's operators say: `span_us` from the first one's start to the last's end, in `threads` threads."""

    span_us: float = 0.0
    threads: int = 0
    operators: dict[str, Operator] = field(default_factory=lambda: defaultdict(Operator))


def read_trace(path: Path) -> list[Event]:
    """The complete events of a Chrome trace, plain or gzipped. RadixError says what is wrong with the file."""
    try:
        data = path.read_bytes()
        found = _trace.decode(gzip.decompress(data) if data.startswith(GZIP) else data)
    except OSError as error:
        raise RadixError(error.strerror or str(error)) from None
    except (EOFError, zlib.error, msgspec.DecodeError, RecursionError) as error:
        raise RadixError(f"not a Chrome trace: {error if data else 'it is empty'}") from None
    return [event for event in (found if isinstance(found, list) else found.events) if event.complete]


def break_down(events: Iterable[Event]) -> Breakdown:
    """Sum complete events up. Kernels on several streams may overlap: then groups together exceed `busy_us`."""
    found = Breakdown()
    device: list[tuple[float, float, str]] = []
    for event in events:
        name = event.name
        if event.cat in DEVICE_KINDS:
            device.append((event.ts, event.end, name))
        elif event.cat in ("cuda_runtime", "cuda_driver") and (LAUNCHES.match(name) or WAITS.match(name)):
            found.host["waiting" if WAITS.match(name) else "launching and copying"].add(event.dur)
    device.sort()
    reached = device[0][0] if device else 0.0
    for start, end, name in device:
        short = short_name(name)
        found.kernels[short].add(end - start)
        found.groups[group_of(name)].add(end - start)
        gap = start - reached
        if gap > SMALL_GAP_US:
            found.gaps[short].add(gap)
        elif gap > 0:
            found.small_gaps.add(gap)
        found.busy_us += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    found.span_us = reached - device[0][0] if device else 0.0
    return found


def break_down_host(events: Iterable[Event]) -> HostBreakdown:
    """Sum the host's operators up: a call within another, on one thread, was made by it."""
    found = HostBreakdown()
    threads: dict[tuple[int | str, int | str], list[Event]] = defaultdict(list)
    for event in events:
        if event.cat in HOST_KINDS:
            threads[event.pid, event.tid].append(event)
    for calls in threads.values():
        calls.sort(key=lambda call: (call.ts, -call.dur))
        running: list[Event] = []
        names: Counter[str] = Counter()
        for call in calls:
            while running and running[-1].end <= call.ts:
                names[running.pop().name] -= 1
            operator = found.operators[call.name]
            operator.add(call.dur)
            if running:
                found.operators[running[-1].name].us -= min(call.dur, running[-1].end - call.ts)
            if not names[call.name]:
                operator.total_us += call.dur
            running.append(call)
            names[call.name] += 1
    every = [call for calls in threads.values() for call in calls]
    if every:
        found.span_us = max(call.end for call in every) - min(call.ts for call in every)
    found.threads = len(threads)
    return found


def group_of(kernel: str) -> str:
    """What a kernel does."""
    return next((group for group, pattern in GROUPS if pattern.search(kernel)), OTHER)


def short_name(kernel: str, most: int = 60) -> str:
    """A kernel's name without its template arguments, namespaces and result type."""
    name = re.sub(r"\(anonymous namespace\)::", "", kernel)
    depth, kept = 0, []
    for letter in name:
        depth += letter == "<"
        if not depth:
            kept.append(letter)
        depth -= letter == ">" and depth > 0
    plain = "".join(kept).split("(")[0].removeprefix("void ").strip()
    return (plain.split("::")[-1] or kernel)[:most]


def report(events: Sequence[Event], steps: int, top: int) -> str:
    """The tables, per step when `steps` says how many the trace holds. RadixError when nothing in it takes time."""
    device = break_down(events)
    if device.kernels and not device.span_us:
        raise RadixError("its device events take no time")
    if device.kernels:
        return device_report(device, steps, top)
    host = break_down_host(events)
    if not host.operators:
        raise RadixError("it holds neither device events nor operators of the host")
    if not host.span_us:
        raise RadixError("its operators take no time")
    return host_report(host, steps, top)


def device_report(found: Breakdown, steps: int, top: int) -> str:
    """How busy the device was, and tables of groups, kernels and gaps."""
    idle, unit = found.span_us - found.busy_us, _unit(steps)
    lines = [
        f"{'device':28}{_us(found.span_us, steps)} {unit}, busy {100 * found.busy_us / found.span_us:.1f} %",
        f"{'  idle in small gaps':28}{_us(found.small_gaps.us, steps)} in {found.small_gaps.calls / steps:.0f}",
        f"{'  idle in larger ones':28}{_us(idle - found.small_gaps.us, steps)}",
    ]
    lines += [f"{'host ' + name:28}{_us(share.us, steps)} in {share.calls / steps:.0f} calls"
              for name, share in sorted(found.host.items())]  # fmt: skip
    for title, shares in (("groups", found.groups), ("kernels", found.kernels), ("gaps before", found.gaps)):
        lines += ["", f"{title:60}{unit:>14}{'calls':>9}{'us each':>10}{'share':>8}"]
        lines += [
            f"{name:60}{_us(share.us, steps):>14}{share.calls / steps:9.1f}{share.us / share.calls:10.2f}"
            f"{100 * share.us / found.span_us:7.1f}%"
            for name, share in _largest(shares, top)
        ]
    return "\n".join(lines)


def host_report(found: HostBreakdown, steps: int, top: int) -> str:
    """How much of the time was spent in operators, and a table of them by their own time."""
    unit, own_us = _unit(steps), sum(operator.us for operator in found.operators.values())
    lines = [
        "no device events; the host's operators:",
        f"{'host':28}{_us(found.span_us, steps)} {unit}, on {found.threads} thread{'s' * (found.threads > 1)}",
        f"{'  in operators':28}{_us(own_us, steps)}",
        "",
        f"{'operators':60}{unit:>14}{'with callees':>14}{'calls':>9}{'us each':>10}{'share':>8}",
    ]
    lines += [
        f"{name[:60]:60}{_us(operator.us, steps):>14}{_us(operator.total_us, steps):>14}{operator.calls / steps:9.1f}"
        f"{operator.us / operator.calls:z10.2f}{100 * operator.us / found.span_us:z7.1f}%"
        for name, operator in _largest(found.operators, top)
    ]
    return "\n".join(lines)


def _largest(shares: Mapping[str, S], top: int) -> list[tuple[str, S]]:
    return sorted(shares.items(), key=lambda item: -item[1].us)[:top]


def _unit(steps: int) -> str:
    return "us per step" if steps > 1 else "us"


def _us(us: float, steps: int) -> str:
    return f"{us / steps:z,.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Exit 0: the tables are printed; 1: the file is at fault; 2: the command line is wrong."""
    parser = argparse.ArgumentParser(prog="radixlm profile", description=__doc__)
    parser.add_argument("trace", type=Path, help="a Chrome trace, .json or .json.gz")
    parser.add_argument("--steps", type=int, default=1, help="how many steps it holds: numbers are then per step")
    parser.add_argument("--top", type=int, default=15, help="lines of each table")
    options = parser.parse_args(argv)
    if options.steps < 1 or options.top < 1:
        parser.error("--steps and --top are at least 1")
    try:
        text = report(read_trace(options.trace), options.steps, options.top)
    except RadixError as error:
        print(f"error: {options.trace}: {error}", file=sys.stderr)
        return 1
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

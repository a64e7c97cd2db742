"""`radixlm profile TRACE`: where a step's time goes, by a torch profiler's Chrome trace. Knows no tensor.

Traces come from the server's /start_profile, or from `python -m radixlm.engine.step_cost --trace`. Kernels are grouped
by what they do; a device gap is time in which nothing ran on it, and is put down to the kernel that ended it.
"""

import argparse
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radixlm.base.errors import ConfigError

DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = re.compile(r"cu(da)?(Launch|GraphLaunch|Memcpy|Memset)")
WAITS = re.compile(r"cu(da)?(Event|Stream|Device|Ctx)Synchronize")
SMALL_GAP_US = 3.0  # between kernels that follow one another at once
# What a kernel does, by its name; the first that matches.
GROUPS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (group, re.compile(pattern, re.IGNORECASE))
    for group, pattern in (
        ("copies", r"^mem(cpy|set)|copy_kernel|memcpy32"),
        ("decode attention", r"^_decode|^_cut_rows|decode.*paged|paged.*decode"),
        ("prompt attention", r"^_prefill|prefill|flash|fmha|attention"),
        ("matrix products", r"nvjet|gemm|cutlass|cublas|splitk|gemv|^_(matmul|row|several)$"),
        ("norms", r"norm"),
        ("rotary and storing", r"rotary|^_rotate"),
        ("activations", r"silu|gelu|sigmoid"),
        ("sampling", r"^_scan|^_check|^_choose|argmax|softmax|topk|sort"),
        ("gathers and scatters", r"gather|scatter|index"),
    )
)
OTHER = "other"


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


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a Chrome trace, plain or gzipped. ConfigError when the file is none."""
    try:
        data = path.read_bytes()
        document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        events = document["traceEvents"] if isinstance(document, dict) else document
        if not isinstance(events, list):
            raise ValueError("it has no list of events")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, EOFError) as error:
        raise ConfigError(f"{path} is no Chrome trace: {error}") from None
    return [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]


def break_down(events: Iterable[dict[str, Any]]) -> Breakdown:
    """Sum complete events up. Kernels on several streams may overlap: then groups together exceed `busy_us`."""
    found = Breakdown()
    device: list[tuple[float, float, str]] = []
    for event in events:
        name, kind = str(event.get("name", "")), event.get("cat")
        start, us = float(event["ts"]), float(event.get("dur", 0.0))
        if kind in DEVICE_KINDS:
            device.append((start, start + us, name))
        elif kind in ("cuda_runtime", "cuda_driver") and (LAUNCHES.match(name) or WAITS.match(name)):
            found.host["waiting" if WAITS.match(name) else "launching and copying"].add(us)
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


def report(found: Breakdown, steps: int, top: int) -> str:
    """The tables, per step when `steps` says how many the trace holds."""
    if not found.kernels:
        return "the trace holds no device events"
    idle = found.span_us - found.busy_us
    unit = "us per step" if steps > 1 else "us"
    lines = [
        f"{'device':28}{_us(found.span_us, steps)} {unit}, busy {100 * found.busy_us / found.span_us:.1f} %",
        f"{'  idle in small gaps':28}{_us(found.small_gaps.us, steps)} in {found.small_gaps.calls / steps:.0f}",
        f"{'  idle in larger ones':28}{_us(idle - found.small_gaps.us, steps)}",
    ]
    lines += [f"{'host ' + name:28}{_us(share.us, steps)} in {share.calls / steps:.0f} calls"
              for name, share in sorted(found.host.items())]  # fmt: skip
    for title, shares in (("groups", found.groups), ("kernels", found.kernels), ("gaps before", found.gaps)):
        lines += ["", f"{title:60}{unit:>14}{'calls':>9}{'us each':>10}{'share':>8}"]
        ordered = sorted(shares.items(), key=lambda item: -item[1].us)[:top]
        lines += [
            f"{name:60}{_us(share.us, steps):>14}{share.calls / steps:9.1f}{share.us / share.calls:10.2f}"
            f"{100 * share.us / found.span_us:7.1f}%"
            for name, share in ordered
        ]
    return "\n".join(lines)


def _us(us: float, steps: int) -> str:
    return f"{us / steps:,.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="radixlm profile", description=__doc__)
    parser.add_argument("trace", type=Path, help="a Chrome trace, .json or .json.gz")
    parser.add_argument("--steps", type=int, default=1, help="how many steps it holds: numbers are then per step")
    parser.add_argument("--top", type=int, default=15, help="lines of each table")
    options = parser.parse_args(argv)
    if options.steps < 1 or options.top < 1:
        parser.error("--steps and --top are at least 1")
    print(report(break_down(read_trace(options.trace)), options.steps, options.top))
    return 0

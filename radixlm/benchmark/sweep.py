"""`radixlm bench sweep`: the same load at rising rates or concurrencies, and how much of it is served within bounds."""

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from radixlm.base.errors import ConfigError
from radixlm.benchmark import options as cli
from radixlm.benchmark.options import Options
from radixlm.benchmark.overload import falls_behind
from radixlm.benchmark.report import Run, encode_line, record
from radixlm.benchmark.serving import run
from radixlm.benchmark.slo import Goodput, Slo
from radixlm.benchmark.svg import Series, line_chart
from radixlm.benchmark.workers import run_async
from radixlm.config.commandline import Program, append_line, command, table
from radixlm.config.flags import at_least, flag, writable


@dataclass(frozen=True)
class SweepOptions:
    """What is varied, and where results go."""

    request_rates: tuple[float, ...] | None = flag(None, "the rates, in requests per second", many=True)
    max_concurrencies: tuple[int, ...] | None = flag(None, "the concurrencies, all sent at once", many=True)
    repeat: int = flag(1, "runs of each, with seeds of their own", check=at_least(1))
    plot: str | None = flag(None, "SVG file for the plot", check=writable)


PROGRAM = Program(
    "sweep",
    "Measure a server at several loads. Further options are those of bench serving; the cache is flushed before each.",
    {"sweep": SweepOptions, "bounds": Slo},
)


@dataclass(frozen=True)
class Point:
    """One load: its runs' means, the lowest and highest goodput among them, and whether most of them fell behind."""

    load: float
    throughput: float
    output_throughput: float
    goodput: float
    goodput_range: tuple[float, float]
    attainment: float
    p99_ttft_ms: float
    p99_tpot_ms: float
    failed: int
    behind: bool


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    found, rest = PROGRAM.read_known(argv, "[options of bench serving]")
    options: SweepOptions = found["sweep"]
    slo: Slo = found["bounds"]
    base = cli.parse(rest)
    rates, limits = options.request_rates, options.max_concurrencies
    if (rates is None) == (limits is None):
        raise ConfigError("give either --request-rates or --max-concurrencies")
    if slo.empty:
        raise ConfigError("give a bound, such as --slo-ttft-ms 500 --slo-tpot-ms 50: without one there is no goodput")
    values: Sequence[float] = sorted(rates or limits or ())
    if values[0] <= 0:
        raise ConfigError("rates and concurrencies must be positive")
    points = []
    for place, value in enumerate(values):
        runs = [
            run_async(run(_at(base, value, rates is not None, place * options.repeat + i)))
            for i in range(options.repeat)
        ]
        points.append(point(value, runs, slo))
        if base.output.output_file is not None:
            for one in runs:
                append_line(base.output.output_file, encode_line(record(one) | slo_keys(one, slo)))
        print(f"{value:g}: goodput {points[-1].goodput:.2f} requests/s", file=sys.stderr, flush=True)
    print(shown(points, rates is not None))
    print(verdict(points, slo, rates is not None))
    if options.plot is not None:
        _write(options.plot, plot(points, rates is not None))
    return 0


def _at(base: Options, value: float, by_rate: bool, number: int) -> Options:
    """`base` at one load. Every run has a seed of its own, so that none finds another's prompts in the cache."""
    load = replace(base.load, seed=base.load.seed + number, flush_cache=True)
    if by_rate:
        return replace(base, load=replace(load, request_rate=value))
    return replace(base, load=replace(load, max_concurrency=int(value)))


def slo_keys(one: Run, slo: Slo) -> dict[str, Any]:
    """What a line of a sweep has beside those of bench serving."""
    bounds = {name: getattr(slo, name) for name in ("slo_ttft_ms", "slo_tpot_ms", "slo_itl_ms", "slo_e2e_ms")}
    good = goodput(one, slo)
    return {**bounds, "slo_attainment": good.attainment, "goodput": good.per_s}


def goodput(one: Run, slo: Slo) -> Goodput:
    """That of one run."""
    return Goodput.of(slo, one.outcomes, one.metrics.duration_s, math.isfinite(one.options.load.request_rate))


def point(value: float, runs: Sequence[Run], slo: Slo) -> Point:
    """The runs at one load."""
    goods = [goodput(one, slo) for one in runs]
    metrics = [one.metrics for one in runs]
    return Point(
        load=value,
        throughput=fmean(m.request_throughput for m in metrics),
        output_throughput=fmean(m.output_throughput for m in metrics),
        goodput=fmean(good.per_s for good in goods),
        goodput_range=(min(good.per_s for good in goods), max(good.per_s for good in goods)),
        attainment=fmean(good.attainment for good in goods),
        p99_ttft_ms=fmean(m.ttft.p99 for m in metrics),
        p99_tpot_ms=fmean(m.tpot.p99 for m in metrics),
        failed=sum(m.failed for m in metrics),
        behind=2 * sum(falls_behind(one.outcomes) for one in runs) > len(runs),
    )


def shown(points: Sequence[Point], by_rate: bool) -> str:
    """The table."""
    heads = ["rate" if by_rate else "at once", "req/s", "out tok/s", "goodput", "spread", "within", "p99 TTFT ms"]
    rows = [[*heads, "p99 TPOT ms", "failed"]]
    for one in points:
        low, high = one.goodput_range
        rows.append(
            [
                f"{one.load:g}",
                f"{one.throughput:.2f}",
                f"{one.output_throughput:.1f}",
                f"{one.goodput:.2f}",
                f"{low:.2f}-{high:.2f}",
                f"{100 * one.attainment:.0f} %",
                f"{one.p99_ttft_ms:.0f}",
                f"{one.p99_tpot_ms:.1f}",
                str(one.failed),
            ]
        )
    return table(rows)


def verdict(points: Sequence[Point], slo: Slo, by_rate: bool) -> str:
    """The highest load up to which every one is served within the bounds, and from which rate on none is kept."""
    name, share = "rate" if by_rate else "concurrency", f"{100 * slo.slo_attainment:.0f} %"
    good = list(itertools.takewhile(lambda one: one.attainment >= slo.slo_attainment, points))
    beyond = [one.load for one in points[len(good) :] if one.attainment >= slo.slo_attainment]
    if good:
        best = good[-1]
        served = f"goodput {best.goodput:.2f} requests/s"
        lines = [f"up to {name} {best.load:g}, {share} of requests are within the bounds ({served})"]
    else:
        lines = [
            f"at {name} {points[0].load:g}, the lowest tried, fewer than {share} are within the bounds: try lower ones"
        ]
    if len(good) == len(points):
        lines.append(f"that is the highest {name} tried: the server may hold more")
    if beyond:
        again = ", ".join(f"{load:g}" for load in beyond)
        lines.append(
            f"{again} keeps them though a lower {name} does not: that is chance; send more requests, or --repeat"
        )
    kept = [place for place, one in enumerate(points) if not one.behind]
    missed = points[kept[-1] + 1 :] if kept else points
    if by_rate and missed and math.isfinite(missed[0].load):
        lines.append(f"from rate {missed[0].load:g} on less comes back than is sent: latencies there only grow")
    return "\n".join(lines)


def plot(points: Sequence[Point], by_rate: bool) -> str:
    """Throughput and goodput over the load, as SVG."""
    xs = [one.load for one in points]
    series = [
        Series("served", [one.throughput for one in points]),
        Series("served within the bounds", [one.goodput for one in points]),
    ]
    label = "requests sent per second" if by_rate else "requests in flight at most"
    return line_chart("Throughput and goodput", label, "requests/s", xs, series)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())

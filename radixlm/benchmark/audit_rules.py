"""The rules of the audit: each looks at one result and says, in numbers, what in it misleads. Reads no file."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from types import MappingProxyType
from typing import Literal

import numpy as np

from radixlm.benchmark.results import Result

Severity = Literal["wrong", "misleading", "note"]

TOLERANCE = 0.02  # of sums that should agree
SHORT_RUN_S, GOOD_RUN_S = 10.0, 60.0
BUSY_CLIENT_PERCENT = 80.0
PYTHON_CLIENT_EVENTS_PER_S = 4000.0  # about what one asyncio thread that parses JSON takes
SAMPLES_BEYOND = 10  # requests beyond a percentile, for it to be more than an anecdote
KEPT_UP = 0.9  # of the asked rate
HELD_BACK = 0.7  # of the concurrency limit, on average with ramp-up and tail
CHANCE = 2.0  # standard deviations of how long a Poisson process takes for so many arrivals
NEEDED = ("duration", "completed", "request_throughput")
COUNTED = (*NEEDED, "failed", "num_prompts", "concurrency")
UNSHARED_DATASETS = ("random", "random-ids", "sharegpt", "custom", "openai")

_STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = MappingProxyType(
    {"mean": fmean, "median": median, "p99": lambda values: float(np.percentile(values, 99))}
)


@dataclass(frozen=True)
class Finding:
    """One thing to beware of: how bad, the numbers that show it, and what to do."""

    rule: str
    severity: Severity
    evidence: str
    advice: str


Check = Callable[[Result], Iterator[Finding]]


def _finding(rule: str, severity: Severity, evidence: str, advice: str) -> Finding:
    return Finding(rule, severity, evidence, advice)


def fields(result: Result) -> Iterator[Finding]:
    """What has the name of a number must be one, and without successes there is nothing to quote."""
    advice = "do not quote this file: it was edited, cut, or its client is broken"
    raw = result.raw
    measured = [key for key in raw if key in COUNTED or key.endswith(("_ms", "_throughput"))]
    for key in [*(key for key in NEEDED if key not in raw), *measured]:
        number = result.number(key)
        if key not in raw:
            yield _finding("fields", "wrong", f"{key} is missing", advice)
        elif number is None and not (raw[key] is None and key.startswith("slo_")):  # a bound that was not asked for
            shown = "null or NaN" if raw[key] is None else repr(raw[key])
            yield _finding("fields", "wrong", f"{key} is {shown}, no number", advice)
        elif number is not None and number < 0:
            yield _finding("fields", "wrong", f"{key} is {number:g}, below 0", advice)
    if result.completed == 0:
        text = "no request succeeded: every rate and latency in the file is of nothing"
        yield _finding("nothing-succeeded", "wrong", text, "read the errors, and run again")


def failures(result: Result) -> Iterator[Finding]:
    """Failed requests are in no latency."""
    failed, sent = result.failed, result.sent
    if failed is None:
        yield _finding(
            "failures-unknown",
            "note",
            f"{result.completed} completed; how many were sent is not in the file",
            "compare with --num-prompts, or run with --output-details",
        )
    elif failed > 0:
        share = failed / sent if sent else 1.0
        yield _finding(
            "failures",
            "wrong" if share > 0.1 else "misleading",
            f"{failed} of {sent} requests failed ({100 * share:.1f} %) and are in no latency",
            "find out why (errors), and compare only runs in which everything succeeded",
        )


def totals(result: Result) -> Iterator[Finding]:
    """Sums, rates and details must tell the same story."""
    advice = "do not quote this file: it was edited, cut, or its client is broken"
    duration = result.duration_s or 0.0
    pairs = [
        ("completed / duration", result.number("completed"), result.number("request_throughput")),
        ("output tokens / duration", result.number("total_output_tokens"), result.number("output_throughput")),
        ("input tokens / duration", result.number("total_input_tokens"), result.number("input_throughput")),
    ]
    for label, total, rate in pairs:
        if total is not None and rate is not None and duration > 0 and not _close(total / duration, rate):
            yield _finding("totals", "wrong", f"{label} is {total / duration:.2f}, the file says {rate:.2f}", advice)
    lens = result.numbers("output_lens")
    total = result.number("total_output_tokens")
    if lens is not None and total is not None and not _close(sum(lens), total):
        yield _finding("totals", "wrong", f"output lengths sum to {sum(lens):.0f}, the total is {total:.0f}", advice)
    good = None if result.errors is None else sum(not error for error in result.errors)
    if good is not None and result.completed is not None and good != result.completed:
        yield _finding("totals", "wrong", f"{good} entries without error, {result.completed} completed", advice)
    concurrency, e2e, rate = result.number("concurrency"), result.latency("e2e_latency", "mean"), pairs[0][2]
    if concurrency is not None and e2e is not None and rate is not None and not _close(rate * e2e / 1000, concurrency):
        yield _finding(
            "totals",
            "wrong",
            f"throughput x mean latency is {rate * e2e / 1000:.2f}, the file says concurrency {concurrency:.2f}",
            advice,
        )


def details(result: Result) -> Iterator[Finding]:
    """Statistics must be those of the requests that the file holds."""
    good = result.successes
    ttfts, itls = result.numbers("ttfts"), result.raw.get("itls")
    if good is None:
        return
    samples: dict[str, list[float]] = {}
    if ttfts is not None and len(ttfts) == len(good):
        samples["ttft"] = list(itertools.compress(ttfts, good))
    if isinstance(itls, list) and len(itls) == len(good) and all(isinstance(gaps, list) for gaps in itls):
        samples["itl"] = [
            gap for gaps in itertools.compress(itls, good) for gap in gaps if isinstance(gap, (int, float))
        ]
    for (name, values), stat in itertools.product(samples.items(), _STATISTICS):
        told = result.latency(name, stat)
        if told is None or not values or not all(map(math.isfinite, values)):
            continue
        found = 1000 * _STATISTICS[stat](values)
        if not _close(found, told):
            text = f"{stat} {name.upper()} of the requests in the file is {found:.1f} ms, the file says {told:.1f}"
            yield _finding(
                "details", "wrong", text, "do not quote this file: its numbers are not those of its requests"
            )


def order(result: Result) -> Iterator[Finding]:
    """No first token comes after the last, and percentiles rise."""
    for stat in ("mean", "median", "p99"):
        ttft, e2e = result.latency("ttft", stat), result.latency("e2e_latency", stat)
        if ttft is not None and e2e is not None and ttft > e2e * (1 + TOLERANCE):
            text = f"{stat} TTFT {ttft:.1f} ms is above {stat} latency {e2e:.1f} ms"
            yield _finding("order", "wrong", text, "do not quote this file")
    for name in ("e2e_latency", "ttft", "tpot", "itl"):
        rising = [v for stat in ("median", "p90", "p95", "p99") if (v := result.latency(name, stat)) is not None]
        if any(b < a * (1 - 1e-6) for a, b in itertools.pairwise(rising)):
            yield _finding("order", "wrong", f"percentiles of {name} fall: {rising}", "do not quote this file")


def short_lengths(result: Result) -> Iterator[Finding]:
    """Answers that ended early make everything look faster."""
    asked, got = result.requested_output_tokens, result.number("total_output_tokens")
    if asked and got is not None and got < (1 - TOLERANCE) * asked:
        yield _finding(
            "lengths-not-reached",
            "misleading",
            f"{got:.0f} output tokens came of {asked:.0f} asked for ({100 * got / asked:.0f} %)",
            "leave ignore_eos on, or state the mean length that came beside every number",
        )


def range_ratio(result: Result) -> Iterator[Finding]:
    """A range ratio of 0 halves the lengths that the command line names; one of 1 keeps them."""
    ratio, completed = result.number("random_range_ratio"), result.completed
    if ratio is None or not completed or not (result.dataset or "").startswith("random"):
        return
    for side, key in (("input", "random_input_len"), ("output", "random_output_len")):
        named, total = result.number(key), result.number(f"total_{side}_tokens")
        if named is None or total is None or total / completed >= 0.9 * named:
            continue
        if ratio < 1:
            yield _finding(
                "range-ratio",
                "misleading",
                f"named {side} length {named:.0f}, mean {total / completed:.0f} (--random-range-ratio {ratio:g})",
                "set --random-range-ratio 1.0, or quote the mean lengths",
            )
        elif side == "input":  # outputs that end early have a rule of their own
            yield _finding(
                "inputs-too-short",
                "misleading",
                f"named input length {named:.0f}, mean {total / completed:.0f}, although --random-range-ratio is 1",
                "quote the mean length: prompts were cut, or the file names another load than it holds",
            )


def warm_cache(result: Result) -> Iterator[Finding]:
    """Cached prompts were not computed, though input throughput counts them."""
    hits = result.hit_rate
    unshared = result.dataset in UNSHARED_DATASETS
    if hits is None and result.raw.get("flush_cache") is not True:
        yield _finding(
            "cache-unknown",
            "note",
            "neither a hit rate nor a flushed cache is in the file",
            "run with --flush-cache and --cache-report; a second run with one seed is served from the cache",
        )
    elif hits is not None and hits > TOLERANCE + _template_share(result) and unshared:
        flushed = "although it was flushed" if result.raw.get("flush_cache") is True else "it was not flushed"
        yield _finding(
            "warm-cache",
            "misleading",
            f"{100 * hits:.1f} % of prompt tokens came from the cache; the dataset shares none ({flushed})",
            "run with --flush-cache or a new --seed: TTFT and input throughput are too good",
        )


def _template_share(result: Result) -> float:
    """The share of prompts that a chat template adds: it is the same in all of them."""
    counted, thought = result.number("server_prompt_tokens"), result.number("total_input_tokens")
    if not result.backend.endswith("-chat") or not counted or thought is None:
        return 0.0
    return max(1 - thought / counted, 0.0)


def warm_up(result: Result) -> Iterator[Finding]:
    """The first requests pay for what later ones do not."""
    ttfts = result.numbers("ttfts")
    if ttfts is not None and len(ttfts) >= 10 and min(ttfts) >= 0:
        first, rest = ttfts[0], [value for value in ttfts[1:] if value > 0]
        if rest and first > 3 * sorted(rest)[int(0.9 * (len(rest) - 1))]:
            yield _finding(
                "warm-up-counted",
                "misleading",
                f"the first TTFT is {1000 * first:.0f} ms, the median of the others {1000 * median(rest):.0f} ms",
                "send a few --warmup-requests, then flush the cache",
            )
            return
    if result.raw.get("warmup_requests") == 0:
        text = "no warm-up was sent: compilation and first allocations may be in the numbers"
        yield _finding("no-warm-up", "note", text, "send a few --warmup-requests, then flush the cache")


def busy_client(result: Result) -> Iterator[Finding]:
    """A client that is the limit measures itself."""
    cpu = result.number("client_cpu_percent")
    if cpu is not None and cpu > BUSY_CLIENT_PERCENT:
        yield _finding(
            "client-saturated",
            "misleading",
            f"the busiest client process used {cpu:.0f} % of a core",
            "use more --client-processes, or another machine for the client",
        )
    rate = result.number("output_throughput")
    if cpu is None and rate is not None and rate > PYTHON_CLIENT_EVENTS_PER_S:
        yield _finding(
            "client-unknown",
            "note",
            f"{rate:.0f} tokens/s through one Python thread, whose CPU use was not recorded",
            "watch the client's CPU, or repeat with radixlm bench serving, which records its own",
        )


def few_samples(result: Result) -> Iterator[Finding]:
    """A percentile needs requests beyond it."""
    completed = result.completed or 0
    for percent in (99, 95, 90) if completed else ():
        if result.latency("ttft", f"p{percent}") is None:
            continue
        beyond = completed * (100 - percent) / 100
        if beyond < SAMPLES_BEYOND:
            level: Severity = "misleading" if beyond < 2 else "note"
            yield _finding(
                "few-requests",
                level,
                f"p{percent} of {completed} requests rests on {beyond:.1f} of them",
                f"send {SAMPLES_BEYOND * 100 // (100 - percent)} requests to quote p{percent}",
            )
            return


def saturation(result: Result) -> Iterator[Finding]:
    """Above what a server can do, TTFT is the length of the run, or the wait is at the client's own limit."""
    rate, got, limit = result.rate_per_s, result.number("request_throughput"), result.max_concurrency
    if rate and math.isfinite(rate) and got is not None and got < KEPT_UP * rate and _came_late(result, rate):
        growth, at_once = _growth(result.numbers("ttfts")), result.number("concurrency")
        text = f"{rate:g} requests/s were asked for, {got:.2f} came back"
        if growth is not None:
            text += f"; TTFT of the last quarter is {growth:.1f} times that of the first"
        advice = "latencies only say how long the run was: lower the rate until it is kept (radixlm bench sweep)"
        if limit is not None and at_once is not None and at_once > HELD_BACK * limit:
            text += f"; {at_once:.1f} of at most {limit} ran at once, the others waited in the client"
            advice = "no latency holds that wait: lower the rate until it is kept, or raise --max-concurrency"
        yield _finding("above-saturation", "misleading", text, advice)
    if rate is not None and math.isinf(rate):
        completed = result.completed or 0
        ttft, e2e = result.latency("ttft", "median"), result.latency("e2e_latency", "median")
        if completed > 1 and (limit is None or limit >= completed):
            share = f" ({100 * ttft / e2e:.0f} % of the latency)" if ttft is not None and e2e else ""
            yield _finding(
                "burst",
                "misleading",
                f"{completed} requests were sent at once: median TTFT {ttft or 0:.0f} ms{share} is queueing",
                "quote throughput only; for latency use a --request-rate that the server keeps",
            )


def _came_late(result: Result, rate_per_s: float) -> bool:
    """Whether the run took longer than its arrivals, the chance in them, and the last answers' own time."""
    duration, sent = result.duration_s, result.sent or result.completed
    if duration is None or not sent:
        return False
    e2e, ttft = result.latency("e2e_latency", "p99"), result.latency("ttft", "p99")
    # An answer's own time: what comes after its first token, without the wait before it.
    answer_s = 0.0 if e2e is None or ttft is None else max(e2e - ttft, 0.0) / 1000
    return duration - sent / rate_per_s - answer_s > CHANCE * math.sqrt(sent) / rate_per_s


def _growth(samples: list[float] | None) -> float | None:
    """Mean of the last quarter over that of the first."""
    if samples is None or len(samples) < 16:
        return None
    quarter = len(samples) // 4
    first = fmean(samples[:quarter])
    return fmean(samples[-quarter:]) / first if first > 0 else None


def client_queue(result: Result) -> Iterator[Finding]:
    """Time at the client's own limit is in no latency."""
    queue, e2e, rate = result.number("mean_client_queue_ms"), result.latency("e2e_latency", "mean"), result.rate_per_s
    if queue is not None and e2e and rate is not None and math.isfinite(rate) and queue > 0.05 * e2e:
        yield _finding(
            "client-queue",
            "misleading",
            f"requests waited {queue:.0f} ms in the client before their clock started; mean latency is {e2e:.0f} ms",
            "lower the rate or raise --max-concurrency: users would have waited",
        )


def usage(result: Result) -> Iterator[Finding]:
    """Lengths that were assumed."""
    assumed = result.number("output_lens_assumed")
    if assumed:
        yield _finding(
            "usage-missing",
            "misleading",
            f"{assumed:.0f} answers came without usage: their lengths are those asked for",
            "have the server send usage (stream_options.include_usage), or use the native backend",
        )
    got, again = result.number("total_output_tokens"), result.number("total_output_tokens_retokenized")
    asked = result.requested_output_tokens
    if assumed is None and result.per_chunk and got and again and got == asked and abs(again - got) > 0.1 * got:
        yield _finding(
            "usage-missing",
            "misleading",
            f"{got:.0f} output tokens are exactly what was asked for, the text holds {again:.0f}",
            "the length was probably assumed: have the server send usage",
        )


def short_run(result: Result) -> Iterator[Finding]:
    """Ramp-up and tail are part of a short run."""
    duration = result.duration_s
    if duration is not None and duration < GOOD_RUN_S:
        yield _finding(
            "short-run",
            "misleading" if duration < SHORT_RUN_S else "note",
            f"the run took {duration:.1f} s; ramp-up and tail are in every throughput",
            f"send more requests: {GOOD_RUN_S:.0f} s or more, three times",
        )


def chunks(result: Result) -> Iterator[Finding]:
    """Gaps between chunks are not gaps between tokens."""
    itl, tpot = result.latency("itl", "mean"), result.latency("tpot", "mean")
    if result.per_chunk and itl and tpot and itl > 1.2 * tpot:
        yield _finding(
            "itl-per-chunk",
            "misleading",
            f"mean ITL {itl:.2f} ms is {itl / tpot:.1f} times mean TPOT {tpot:.2f}: a chunk holds several tokens",
            "quote TPOT; compare ITL only between runs of one backend and one stream interval",
        )


def not_streamed(result: Result) -> Iterator[Finding]:
    """Without a stream there is no first token."""
    ttft, e2e = result.latency("ttft", "mean"), result.latency("e2e_latency", "mean")
    itl, tokens = result.latency("itl", "mean"), result.number("total_output_tokens")
    if result.raw.get("stream") is False or (
        ttft and ttft == e2e and not itl and (tokens or 0) > (result.completed or 0)
    ):
        text = f"nothing was streamed: TTFT {ttft or 0:.1f} ms is the whole latency"
        yield _finding("not-streamed", "misleading", text, "leave --disable-stream away to measure TTFT, TPOT and ITL")


def prompt_counts(result: Result) -> Iterator[Finding]:
    """What the client thinks it sent, and what the server counted."""
    counted, thought = result.number("server_prompt_tokens"), result.number("total_input_tokens")
    if counted is not None and thought and abs(counted - thought) > TOLERANCE * thought:
        templated = result.backend.endswith("-chat") and counted > thought
        yield _finding(
            "prompt-lengths",
            "note" if templated else "misleading",
            f"the server counted {counted:.0f} prompt tokens, the client {thought:.0f}",
            "give the right --tokenizer, or --tokenize-prompt; chat templates add to every prompt",
        )


def speculation(result: Result) -> Iterator[Finding]:
    """Accept length is the server's life, not this run's."""
    accepted = result.number("accept_length")
    if accepted is not None and accepted > 1:
        forced = " ignore_eos lets text run on past its end, which is easy to guess." if _forced(result) else ""
        yield _finding(
            "accept-length",
            "note",
            f"accept length {accepted:.2f} is the server's mean since its start.{forced}",
            "restart or flush before the run, and use real prompts and real ends",
        )


def _forced(result: Result) -> bool:
    return result.raw.get("ignore_eos") is True or result.source == "sglang"


def made_up(result: Result) -> Iterator[Finding]:
    """Weights that are no model's."""
    if result.server.get("load_format") == "dummy":
        text = "the server ran with dummy weights: speed is that of the shapes, acceptance and lengths are nobody's"
        yield _finding("dummy-weights", "note", text, "confirm with real weights")


def server_unknown(result: Result) -> Iterator[Finding]:
    """Settings are part of a result."""
    if not result.server:
        yield _finding(
            "server-unknown",
            "note",
            "the server's settings are not in the file",
            "keep /server_info or the start command beside the numbers",
        )


CHECKS: tuple[Check, ...] = (
    fields,
    failures,
    totals,
    details,
    order,
    short_lengths,
    range_ratio,
    warm_cache,
    warm_up,
    busy_client,
    few_samples,
    saturation,
    client_queue,
    usage,
    short_run,
    chunks,
    not_streamed,
    prompt_counts,
    speculation,
    made_up,
    server_unknown,
)


def audit(result: Result) -> list[Finding]:
    """Everything that misleads in one result, the worst first."""
    found = [finding for check in CHECKS for finding in check(result)]
    rank = {"wrong": 0, "misleading": 1, "note": 2}
    return sorted(found, key=lambda finding: rank[finding.severity])


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b))

"""Numbers out of raw outcomes: pure arithmetic, no clocks and no printing. Seconds go in, latencies come out in ms."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radixlm.benchmark.outcome import Outcome, Request

PERCENTILES = (90, 95, 99)


@dataclass(frozen=True)
class Distribution:
    """One latency over many samples, in ms; percentiles interpolate linearly, std is the population's; 0 if empty."""

    mean: float
    median: float
    std: float
    p90: float
    p95: float
    p99: float
    max: float

    @staticmethod
    def of_seconds(samples_s: Iterable[float]) -> "Distribution":
        ms = np.fromiter(samples_s, dtype=np.float64) * 1000.0
        if not len(ms):
            return Distribution(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        p90, p95, p99 = (float(p) for p in np.percentile(ms, PERCENTILES))
        return Distribution(float(ms.mean()), float(np.median(ms)), float(ms.std()), p90, p95, p99, float(ms.max()))


@dataclass(frozen=True)
class CacheHits:
    """Prefix cache hits as the server told them; `reported` requests came with a count, those without are left out."""

    reported: int
    prompt_tokens: int
    cached_tokens: int
    device_tokens: int
    host_tokens: int
    storage_tokens: int
    storage_backend: str | None

    @property
    def rate(self) -> float | None:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True)
class Metrics:
    """The aggregates of one run. Only successful requests enter sums and latencies; the duration covers all.

    Attributes:
        duration_s: from the start to the end of the last answer.
        input_tokens: prompt lengths as the dataset counted them. server_prompt_tokens: as the server did, None if it
            did not for every request.
        requested_output_tokens: what was asked for, to compare with `output_tokens`.
        assumed_outputs: how many answers' lengths are what was asked for because no usage came.
        peak_output_tokens_per_s, peak_concurrent: over one-second buckets from the start.
        concurrency: sum of latencies divided by the duration.
        queue: from when a request was due to when it was sent; never part of its latency.
    """

    duration_s: float
    completed: int
    failed: int
    errors: tuple[str, ...]
    input_tokens: int
    server_prompt_tokens: int | None
    output_tokens: int
    requested_output_tokens: int
    assumed_outputs: int
    request_throughput: float
    input_throughput: float
    output_throughput: float
    total_throughput: float
    peak_output_tokens_per_s: float
    peak_concurrent: int
    concurrency: float
    e2e: Distribution
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    queue: Distribution
    cache: CacheHits


def summarize(requests: Sequence[Request], outcomes: Sequence[Outcome], start_s: float) -> Metrics:
    """The metrics of a run; `outcomes[i]` belongs to `requests[outcomes[i].index]`, times are on `start_s`'s clock."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    duration_s = max((outcome.end_s for outcome in outcomes), default=start_s) - start_s
    per_s = 1.0 / duration_s if duration_s > 0 else 0.0
    input_tokens = sum(outcome.prompt_tokens(requests[outcome.index]) for outcome in good)
    output_tokens = sum(outcome.output_tokens for outcome in good)
    told = [outcome.server_prompt_tokens for outcome in good if outcome.server_prompt_tokens is not None]
    decoding = (o for o in good if o.output_tokens > 1)
    return Metrics(
        duration_s=duration_s,
        completed=len(good),
        failed=len(outcomes) - len(good),
        errors=_error_sample(outcomes),
        input_tokens=input_tokens,
        server_prompt_tokens=sum(told) if good and len(told) == len(good) else None,
        output_tokens=output_tokens,
        requested_output_tokens=sum(requests[outcome.index].output_tokens for outcome in good),
        assumed_outputs=sum(outcome.output_assumed for outcome in good),
        request_throughput=len(good) * per_s,
        input_throughput=input_tokens * per_s,
        output_throughput=output_tokens * per_s,
        total_throughput=(input_tokens + output_tokens) * per_s,
        peak_output_tokens_per_s=_peak_tokens(good, start_s),
        peak_concurrent=_peak_concurrent(good, start_s),
        concurrency=sum(outcome.latency_s for outcome in good) * per_s,
        e2e=Distribution.of_seconds(outcome.latency_s for outcome in good),
        ttft=Distribution.of_seconds(outcome.ttft_s for outcome in good),
        tpot=Distribution.of_seconds((o.latency_s - o.ttft_s) / (o.output_tokens - 1) for o in decoding),
        itl=Distribution.of_seconds(gap for outcome in good for gap in outcome.inter_token_s()),
        queue=Distribution.of_seconds(outcome.sent_s - outcome.due_s for outcome in good),
        cache=_cache_hits(requests, good),
    )


def _error_sample(outcomes: Sequence[Outcome], limit: int = 5) -> tuple[str, ...]:
    """The most frequent distinct errors, each with its count."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.error is not None:
            counts[outcome.error] = counts.get(outcome.error, 0) + 1
    frequent = sorted(counts.items(), key=lambda item: -item[1])[:limit]
    return tuple(f"{count} x {error}" for error, count in frequent)


def _seconds_since(times_s: Sequence[float], start_s: float) -> npt.NDArray[np.int64]:
    return np.maximum(np.asarray(times_s, dtype=np.float64) - start_s, 0.0).astype(np.int64)


def _peak_tokens(good: Sequence[Outcome], start_s: float) -> float:
    """The fullest second: one count for an answer's first event, one per token of each later one (as SGLang counts)."""
    times = [time for outcome in good for time in outcome.event_s]
    weights = [1 if i == 0 else n for outcome in good for i, n in enumerate(outcome.event_tokens)]
    if not times:
        return 0.0
    return float(np.bincount(_seconds_since(times, start_s), weights=weights).max())


def _peak_concurrent(good: Sequence[Outcome], start_s: float) -> int:
    """The second in which most requests were in flight at some time."""
    if not good:
        return 0
    first = _seconds_since([outcome.sent_s for outcome in good], start_s)
    last = _seconds_since([outcome.end_s for outcome in good], start_s)
    change = np.zeros(int(last.max()) + 2, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    return int(change.cumsum().max())


def _cache_hits(requests: Sequence[Request], good: Sequence[Outcome]) -> CacheHits:
    reported = [outcome for outcome in good if outcome.cached_tokens is not None]
    details = [outcome.cached_details or {} for outcome in reported]

    def prompt_tokens(outcome: Outcome) -> int:
        told = outcome.server_prompt_tokens
        return outcome.prompt_tokens(requests[outcome.index]) if told is None else told

    return CacheHits(
        reported=len(reported),
        prompt_tokens=sum(prompt_tokens(outcome) for outcome in reported),
        cached_tokens=sum(outcome.cached_tokens or 0 for outcome in reported),
        device_tokens=sum(int(detail.get("device") or 0) for detail in details),
        host_tokens=sum(int(detail.get("host") or 0) for detail in details),
        storage_tokens=sum(int(detail.get("storage") or 0) for detail in details),
        storage_backend=next((d["storage_backend"] for d in details if d.get("storage_backend")), None),
    )

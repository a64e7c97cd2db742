"""The requests of the last minutes in memory: for the timeline and the percentiles of the dashboard. Knows no HTTP."""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from radixlm.observability.record import RequestRecord

KEPT = 512  # requests; sorting their times takes about a millisecond
WINDOW_S = 60.0
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Latency:
    """Quantiles (see QUANTILES) in seconds over `count` samples; empty without any."""

    count: int
    quantiles: tuple[float, ...]


class Journal:
    """Remembers the last KEPT requests that ended."""

    def __init__(self) -> None:
        self._ended: deque[RequestRecord] = deque(maxlen=KEPT)

    def add(self, record: RequestRecord) -> None:
        self._ended.append(record)

    def latest(self, most: int) -> list[RequestRecord]:
        """Those that ended last, the newest first."""
        return [self._ended[-1 - index] for index in range(min(most, len(self._ended)))]

    def latency(self, live: Iterable[RequestRecord], now: float | None = None) -> dict[str, Latency]:
        """Of the kept requests that ended in the last WINDOW_S seconds, and of running ones: time to first token of
        those that stream (any other has its first token at its end), time between tokens (each request's mean, weighted
        by its tokens) and whole time of those that ended well."""
        since = (time.time() if now is None else now) - WINDOW_S
        ended = [record for record in self._ended if record.created + (record.ended_s or 0.0) >= since]
        everything = [*ended, *live]
        streams = [record for record in everything if record.stream]
        first = [(record.first_token_s, 1) for record in streams if record.first_token_s is not None]
        between = [
            (mean_s, record.output_tokens - 1) for record in everything if (mean_s := record.inter_token_s) is not None
        ]
        whole = [(record.ended_s, 1) for record in ended if record.ended_s is not None and record.reason != "abort"]
        return {"ttft": _latency(first), "inter_token": _latency(between), "e2e": _latency(whole)}


def _latency(samples: Sequence[tuple[float, int]]) -> Latency:
    """Nearest-rank quantiles of weighted samples."""
    if not samples:
        return Latency(0, ())
    ordered, total = sorted(samples), sum(weight for _, weight in samples)
    found: list[float] = []
    reached, index = 0, -1
    for quantile in QUANTILES:
        while reached < quantile * total:
            index += 1
            reached += ordered[index][1]
        found.append(ordered[index][0])
    return Latency(len(samples), tuple(found))

"""Aggregates against a second, slow computation from the raw events."""

import math
from statistics import fmean, median, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.benchmark.metrics import Distribution, summarize
from radixlm.benchmark.outcome import Outcome, Request

START_S = 100.0


@st.composite
def runs(draw: st.DrawFn) -> list[Outcome]:
    outcomes = []
    for index in range(draw(st.integers(0, 6))):
        due = START_S + draw(st.floats(0, 3))
        sent = due + draw(st.floats(0, 1))
        steps = draw(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 4)), max_size=5))
        times, counts, now = [], [], sent
        for gap, tokens in steps:
            now += gap
            times.append(now)
            counts.append(tokens)
        outcomes.append(
            Outcome(
                index,
                due_s=due,
                sent_s=sent,
                end_s=now + draw(st.floats(0, 1)),
                event_s=times,
                event_tokens=counts,
                output_tokens=sum(counts),
                cached_tokens=draw(st.one_of(st.none(), st.integers(0, 5))),
                server_prompt_tokens=draw(st.one_of(st.none(), st.integers(5, 9))),
                error=draw(st.one_of(st.none(), st.none(), st.just("broken"))),
            )
        )
    return outcomes


def percentile(samples: list[float], q: float) -> float:
    ordered = sorted(samples)
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def check(found: Distribution, samples_s: list[float]) -> None:
    ms = [s * 1000 for s in samples_s]
    if not ms:
        assert found == Distribution(0, 0, 0, 0, 0, 0, 0)
        return
    assert found.mean == pytest.approx(fmean(ms))
    assert found.median == pytest.approx(median(ms))
    assert found.std == pytest.approx(pstdev(ms), abs=1e-6)
    assert found.max == max(ms)
    for q, value in ((90, found.p90), (95, found.p95), (99, found.p99)):
        assert value == pytest.approx(percentile(ms, q))


@settings(max_examples=60)
@given(runs())
def test_against_a_slow_recomputation(outcomes: list[Outcome]) -> None:
    requests = [Request([0] * 7, 7, 20) for _ in outcomes]
    m = summarize(requests, outcomes, START_S)
    good = [o for o in outcomes if o.error is None]
    duration = max([o.end_s for o in outcomes] or [START_S]) - START_S
    assert m.duration_s == duration
    assert (m.completed, m.failed) == (len(good), len(outcomes) - len(good))
    assert m.errors == ((f"{m.failed} x broken",) if m.failed else ())
    produced = sum(sum(o.event_tokens) for o in good)
    assert (m.input_tokens, m.output_tokens) == (7 * len(good), produced)
    assert m.requested_output_tokens == 20 * len(good)
    if duration > 0:
        assert m.request_throughput == pytest.approx(len(good) / duration)
        assert m.input_throughput == pytest.approx(7 * len(good) / duration)
        assert m.output_throughput == pytest.approx(produced / duration)
        assert m.total_throughput == pytest.approx((7 * len(good) + produced) / duration)
        assert m.concurrency == pytest.approx(sum(o.end_s - o.sent_s for o in good) / duration)
    ttfts = [(o.event_s[0] if o.event_s else o.end_s) - o.sent_s for o in good]
    check(m.e2e, [o.end_s - o.sent_s for o in good])
    check(m.ttft, ttfts)
    check(m.queue, [o.sent_s - o.due_s for o in good])
    tpots, itls, marks = [], [], []
    for o, ttft in zip(good, ttfts, strict=True):
        tokens = sum(o.event_tokens)
        if tokens > 1:
            tpots.append((o.end_s - o.sent_s - ttft) / (tokens - 1))
        for i, now in enumerate(o.event_s):
            marks += [now] * (o.event_tokens[i] if i else 1)
            if i:
                itls += [(now - o.event_s[i - 1]) / o.event_tokens[i]] * o.event_tokens[i]
    check(m.tpot, tpots)
    check(m.itl, itls)
    seconds = range(40)
    assert m.peak_output_tokens_per_s == max(sum(int(t - START_S) == s for t in marks) for s in seconds)
    alive = [sum(int(o.sent_s - START_S) <= s <= int(o.end_s - START_S) for o in good) for s in seconds]
    assert m.peak_concurrent == max(alive)
    told = [o for o in good if o.cached_tokens is not None]
    assert m.cache.reported == len(told)
    assert m.cache.cached_tokens == sum(o.cached_tokens or 0 for o in told)
    prompts = [7 if o.server_prompt_tokens is None else o.server_prompt_tokens for o in told]
    assert m.cache.prompt_tokens == sum(prompts)
    complete = bool(good) and all(o.server_prompt_tokens is not None for o in good)
    assert m.server_prompt_tokens == (sum(o.server_prompt_tokens or 0 for o in good) if complete else None)


def test_a_known_case() -> None:
    one = Outcome(0, START_S, START_S, START_S + 2, [START_S + 1, START_S + 1.5, START_S + 1.9], [1, 2, 1], 4)
    m = summarize([Request("x", 3, 4)], [one], START_S)
    assert m.ttft.mean == pytest.approx(1000) and m.tpot.mean == pytest.approx(1000 / 3)
    assert m.itl.max == pytest.approx(400) and m.itl.median == pytest.approx(250)
    assert m.output_throughput == pytest.approx(2) and m.concurrency == pytest.approx(1)
    assert m.peak_output_tokens_per_s == 4


def test_cache_details_are_summed() -> None:
    details = [{"device": 3, "host": 2, "storage": 1, "storage_backend": "file"}, {"device": 4, "host": 0}, None]
    outcomes = [Outcome(i, end_s=START_S + 1, cached_tokens=6, cached_details=d) for i, d in enumerate(details)]
    cache = summarize([Request("x", 10, 1)] * 3, outcomes, START_S).cache
    assert (cache.device_tokens, cache.host_tokens, cache.storage_tokens) == (7, 2, 1)
    assert cache.storage_backend == "file" and cache.rate == pytest.approx(0.6)


def test_distinct_errors_are_counted() -> None:
    outcomes = [Outcome(i, error="a" if i % 3 else "b") for i in range(9)]
    assert summarize([Request("x", 1, 1)] * 9, outcomes, START_S).errors == ("6 x a", "3 x b")

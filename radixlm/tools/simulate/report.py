"""What a simulated run amounts to, as a row of a table and as JSON. Simulates nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from radixlm.tools.simulate.world import Run


class Summary(msgspec.Struct, frozen=True):
    """One run. Latencies in milliseconds over the requests that were answered; `hit_rate` over their prompt tokens.

    TPOT is a request's time after its first token by its further tokens. None: not known of a real server.
    """

    setting: dict[str, str | int | float | None]
    requests: int
    refused: int
    duration_s: float
    busy_share: float | None
    hit_rate: float
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    e2e_ms: dict[str, float]
    output_tokens_per_s: float
    requests_per_s: float
    retractions: int | None
    evicted_tokens: int | None
    steps: int | None
    wall_s: float


def summarize(setting: Mapping[str, str | int | float | None], run: Run) -> Summary:
    answered = [fate for fate in run.fates if fate.finished is not None and fate.finished.reason.type != "abort"]
    ends = [(fate, fate.finished) for fate in answered if fate.finished is not None]
    prompt_tokens = sum(finished.prompt_tokens for _, finished in ends)
    cached_tokens = sum(finished.cached_tokens for _, finished in ends)
    output_tokens = sum(finished.completion_tokens for _, finished in ends)
    tpot = [
        (fate.end_s - fate.first_s) / (finished.completion_tokens - 1)
        for fate, finished in ends
        if finished.completion_tokens > 1
    ]
    per_s = 1 / run.duration_s if run.duration_s > 0 else 0.0
    return Summary(
        setting=dict(setting),
        requests=len(answered),
        refused=len(run.fates) - len(answered),
        duration_s=round(run.duration_s, 3),
        busy_share=round(run.busy_s * per_s, 4),
        hit_rate=round(cached_tokens / prompt_tokens, 4) if prompt_tokens else 0.0,
        ttft_ms=spread([fate.first_s - fate.arrival_s for fate in answered]),
        tpot_ms=spread(tpot),
        e2e_ms=spread([fate.end_s - fate.arrival_s for fate in answered]),
        output_tokens_per_s=round(output_tokens * per_s, 2),
        requests_per_s=round(len(answered) * per_s, 3),
        retractions=run.retractions,
        evicted_tokens=run.evicted_tokens,
        steps=run.steps,
        wall_s=round(run.wall_s, 2),
    )


def spread(samples_s: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles in milliseconds; zeros for nothing."""
    if not samples_s:
        return dict.fromkeys(("mean", "p50", "p90", "p99"), 0.0)
    ms = np.array(samples_s) * 1e3
    p50, p90, p99 = np.percentile(ms, (50, 90, 99))
    return {"mean": _ms(ms.mean()), "p50": _ms(p50), "p90": _ms(p90), "p99": _ms(p99)}


def _ms(value: Any) -> float:
    return round(float(value), 2)


def differing_settings(summaries: Sequence[Summary]) -> list[str]:
    """The settings that are known to differ between runs."""
    names = summaries[0].setting
    return [name for name in names if len({one.setting[name] for one in summaries} - {None}) > 1]


def table(summaries: Sequence[Summary]) -> str:
    """Columns for the settings that differ, then the numbers; a line per run."""
    names = differing_settings(summaries)
    head = [*names, "hit %", "TTFT mean", "p50", "p90", "p99", "TPOT mean", "p99", "E2E p50", "p99", "out tok/s",
            "busy %", "retracted", "refused"]  # fmt: skip
    rows = [head, *(_row(summary, names) for summary in summaries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < len(names) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _row(one: Summary, names: Sequence[str]) -> list[str]:
    ttft, tpot, e2e = one.ttft_ms, one.tpot_ms, one.e2e_ms
    times = [ttft["mean"], ttft["p50"], ttft["p90"], ttft["p99"]]
    return [
        *("-" if one.setting[name] is None else str(one.setting[name]) for name in names),
        f"{one.hit_rate * 100:.1f}",
        *(f"{value:.0f}" for value in times),
        f"{tpot['mean']:.1f}",
        f"{tpot['p99']:.1f}",
        f"{e2e['p50']:.0f}",
        f"{e2e['p99']:.0f}",
        f"{one.output_tokens_per_s:.1f}",
        "-" if one.busy_share is None else f"{one.busy_share * 100:.0f}",
        "-" if one.retractions is None else str(one.retractions),
        str(one.refused),
    ]

"""`radixlm bench compare A.jsonl B.jsonl`: ratios with their spread, and what makes two results not comparable."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from radixlm.base.errors import ConfigError
from radixlm.benchmark.audit_rules import audit
from radixlm.benchmark.results import Result, read_results
from radixlm.benchmark.search import gain_of
from radixlm.config.commandline import Program, command, table

# What both sides must have in common for a ratio to mean anything.
LOAD_KEYS = (
    ("dataset_name", "dataset"),
    ("random_input_len", "input length"),
    ("random_output_len", "output length"),
    ("random_range_ratio", "range ratio"),
    ("sharegpt_output_len", "output length"),
    ("num_prompts", "number of requests"),
    ("max_concurrency", "concurrency"),
    ("ignore_eos", "ignore_eos"),
    ("stream", "streaming"),
)
# Keys of the server's description that differ from start to start and say nothing.
NOISE = frozenset(
    (
        *("pid", "port", "host", "status", "startup_time", "start_time", "uptime", "load_weight_s", "warm_up_s"),
        *("launch_command", "internal_states", "startup_report", "random_seed", "available_gpu_mem"),
    )
)
METRICS = (
    ("request_throughput", "requests/s", True),
    ("output_throughput", "output tok/s", True),
    ("median_ttft_ms", "median TTFT ms", False),
    ("p99_ttft_ms", "p99 TTFT ms", False),
    ("median_tpot_ms", "median TPOT ms", False),
    ("p99_tpot_ms", "p99 TPOT ms", False),
    ("median_e2e_latency_ms", "median E2E ms", False),
)
SMALLEST = 0.005  # of a number: less is called the same, whatever the spread


@dataclass(frozen=True)
class Ratio:
    """B over A for one number. `margin`: what the ratio must differ from 1 by to be more than the runs' spread (95 %);
    inf with a single run on a side."""

    label: str
    a: float
    b: float
    ratio: float
    margin: float
    higher_is_better: bool

    @property
    def verdict(self) -> str:
        if math.isinf(self.margin):
            return "spread unknown"
        if abs(self.ratio - 1) <= SMALLEST:
            return "the same"
        if abs(self.ratio - 1) <= self.margin:
            return "within the spread"
        return "better" if (self.ratio > 1) == self.higher_is_better else "worse"


PROGRAM = Program("compare", "Compare the runs of two result files, B against A.", {})


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Status 1 when the files are not comparable."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    _, files = PROGRAM.read_files(argv, "A.jsonl B.jsonl")
    if len(files) != 2:
        raise ConfigError("name two result files")
    all_a, all_b = read_results(files[0]), read_results(files[1])
    a, b = distinct(all_a), distinct(all_b)
    obstacles = not_comparable(all_a, all_b)
    print(f"A: {len(a)} runs of {files[0]}   B: {len(b)} runs of {files[1]}")
    for line in copies(all_a, all_b):
        print(f"copies: {line}")
    print(shown(ratios(a, b)))
    if min(len(a), len(b)) < 2:
        print("with a single run on a side a difference may be chance: repeat each three times, with three seeds")
    for line in settings_that_differ(a, b):
        print(f"differs: {line}")
    for line in obstacles:
        print(f"not comparable: {line}")
    return 1 if obstacles else 0


def ratios(a: Sequence[Result], b: Sequence[Result]) -> list[Ratio]:
    """Every number that all runs have."""
    found = []
    for key, label, higher in METRICS:
        name = key.replace("median_e2e_latency", "median_e2el")
        left = [value for one in a if (value := one.number(key, name)) is not None]
        right = [value for one in b if (value := one.number(key, name)) is not None]
        if left and right and len(left) == len(a) and len(right) == len(b) and fmean(left) > 0 and fmean(right) > 0:
            found.append(ratio_of(label, left, right, higher))
    return found


def ratio_of(label: str, a: Sequence[float], b: Sequence[float], higher_is_better: bool) -> Ratio:
    """The ratio of two means, with the margin of Welch's t (independent runs)."""
    gain, margin = gain_of(a, b, higher_is_better=True)
    return Ratio(label, fmean(a), fmean(b), 1 + gain, margin, higher_is_better)


def distinct(results: Sequence[Result]) -> list[Result]:
    """The runs that are runs of their own: one that is there twice says nothing about the spread."""
    first: dict[tuple[float | None, ...], Result] = {}
    for one in results:
        first.setdefault(_measured(one), one)
    return list(first.values())


def copies(a: Sequence[Result], b: Sequence[Result]) -> list[str]:
    """What looks like repetition and is none: runs that were copied, and runs of one seed."""
    found = []
    for side, results in (("A", a), ("B", b)):
        left = distinct(results)
        if len(left) < len(results):
            found.append(f"{side} holds {len(results) - len(left)} runs twice; each counts once")
        seeds = _values(left, "seed")
        if len(left) > 1 and len(seeds) == 1:
            found.append(
                f"all runs of {side} have seed {_listed(seeds)}: the same prompts, so a smaller spread than real"
            )
    if {_measured(one) for one in a} & {_measured(one) for one in b}:
        found.append("a run of A is also in B")
    return found


def _measured(result: Result) -> tuple[float | None, ...]:
    return (result.duration_s, *(result.number(key) for key, _, _ in METRICS))


def shown(found: Sequence[Ratio]) -> str:
    """The table."""
    rows = [["", "A", "B", "B / A", "+-", ""]]
    for one in found:
        margin = "n/a" if math.isinf(one.margin) else f"{one.margin:.3f}"
        rows.append([one.label, f"{one.a:.2f}", f"{one.b:.2f}", f"{one.ratio:.3f}", margin, one.verdict])
    return table(rows)


def not_comparable(a: Sequence[Result], b: Sequence[Result]) -> list[str]:
    """Why the ratios mean nothing, in words: another load, other lengths, or a file that is wrong in itself."""
    found = []
    for key, label in LOAD_KEYS:
        left, right = _values(a, key), _values(b, key)
        if left and right and left != right:
            found.append(f"{label}: {_listed(left)} against {_listed(right)}")
    found += [f"{side} mixes loads, {line}" for side, results in (("A", a), ("B", b)) for line in mixed(results)]
    rates = ({one.rate_per_s for one in a}, {one.rate_per_s for one in b})
    if rates[0] != rates[1]:
        found.append(f"request rate: {_listed(rates[0])} against {_listed(rates[1])}")
    for key, label in (("total_input_tokens", "input"), ("total_output_tokens", "output")):
        left_mean, right_mean = _per_request(a, key), _per_request(b, key)
        if left_mean and right_mean and abs(left_mean - right_mean) > 0.05 * left_mean:
            found.append(f"mean {label} length: {left_mean:.0f} against {right_mean:.0f} tokens")
    if {one.per_chunk for one in a} != {one.per_chunk for one in b}:
        found.append("ITL: one side counts chunks, the other tokens (TPOT is comparable)")
    for side, results in (("A", a), ("B", b)):
        for one in results:
            found += [f"{side} {one.where}: {f.rule}: {f.evidence}" for f in audit(one) if f.severity == "wrong"]
    return found


def mixed(results: Sequence[Result]) -> list[str]:
    """What is not the same in all runs of one side, whose mean is then of nothing."""
    labels = (("backend", "backend"), *LOAD_KEYS)
    lines = [f"{label}: {_listed(values)}" for key, label in labels if len(values := _values(results, key)) > 1]
    rates = {one.rate_per_s for one in results}
    return [*lines, f"request rate: {_listed(rates)}"] if len(rates) > 1 else lines


def settings_that_differ(a: Sequence[Result], b: Sequence[Result]) -> list[str]:
    """What else is not the same: it may be what is compared, or what spoils it."""
    lines = []
    for key in ("backend", "model", "model_id"):
        left, right = _values(a, key), _values(b, key)
        if left and right and left != right:
            lines.append(f"{key}: {_listed(left)} against {_listed(right)}")
    if {one.source for one in a} != {one.source for one in b}:
        lines.append(f"client: {_listed({one.source for one in a})} against {_listed({one.source for one in b})}")
    left_info, right_info = a[-1].server, b[-1].server
    for key in sorted(left_info.keys() & right_info.keys() - NOISE):
        old, new = left_info[key], right_info[key]
        if old != new and not isinstance(old, (dict, list)):
            lines.append(f"server {key}: {old} against {new}")
    return lines


def _values(results: Sequence[Result], key: str) -> set[Any]:
    return {one.raw[key] for one in results if one.raw.get(key) is not None}


def _per_request(results: Sequence[Result], key: str) -> float | None:
    total = sum(one.number(key) or 0.0 for one in results)
    completed = sum(one.completed or 0 for one in results)
    return total / completed if completed else None


def _listed(values: set[Any]) -> str:
    return ", ".join(sorted("none" if value is None else str(value) for value in values))


if __name__ == "__main__":
    sys.exit(main())

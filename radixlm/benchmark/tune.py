"""`radixlm tune`: which of the settings that matter help the traffic you have, measured on this machine.

Starts a real server for each setting, one after another, and sends it the same traffic.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from radixlm.base.errors import ConfigError, RadixError
from radixlm.benchmark.datasets.spec import DatasetSpec
from radixlm.benchmark.launched import launched
from radixlm.benchmark.options import LoadOptions, Options, OutputOptions, TargetOptions
from radixlm.benchmark.report import Run
from radixlm.benchmark.search import Change, Search, Settings, Step, Trial, search
from radixlm.benchmark.serving import run
from radixlm.benchmark.workers import run_async
from radixlm.config.cli import read_serve
from radixlm.config.commandline import Program, command, table
from radixlm.config.flags import at_least, flag


@dataclass(frozen=True)
class TrafficOptions:
    """The traffic to be tuned for: described in numbers, or a file of it."""

    input_tokens: int = flag(512, "prompt tokens, without what is shared", check=at_least(1))
    output_tokens: int = flag(128, "output tokens", check=at_least(1))
    shared_prefix: int = flag(0, "tokens that prompts begin with in common, 0: none", check=at_least(0))
    prefixes: int = flag(4, "how many different shared beginnings there are", check=at_least(1))
    traffic: str | None = flag(
        None, "JSONL of recorded traffic: conversations (custom), chat bodies (openai) or a mooncake trace"
    )
    concurrency: int = flag(16, "requests in flight", check=at_least(1))
    requests: int | None = flag(None, "requests of a run (four times the concurrency)", check=at_least(1))


@dataclass(frozen=True)
class TuneOptions:
    """What counts, and how long it may take."""

    objective: str = flag("throughput", "what is to become better", choices=("throughput", "ttft", "tpot", "latency"))
    budget_s: float = flag(900.0, "time for everything", check=at_least(1))
    repeat: int = flag(3, "runs of each setting; with fewer than 2 nothing can be told from noise", check=at_least(2))
    seed: int = flag(1, "seed of the first run's traffic", check=at_least(0))


PROGRAM = Program(
    "tune",
    "Find settings for your traffic on this machine. Further options are those of radixlm serve, and stay as given.",
    {"traffic": TrafficOptions, "tune": TuneOptions},
    family="radixlm",
)

OBJECTIVES: dict[str, tuple[str, bool, Callable[[Run], float]]] = {
    "throughput": ("total tokens/s", True, lambda one: one.metrics.total_throughput),
    "ttft": ("mean TTFT, ms", False, lambda one: one.metrics.ttft.mean),
    "tpot": ("mean TPOT, ms", False, lambda one: one.metrics.tpot.mean),
    "latency": ("mean latency, ms", False, lambda one: one.metrics.e2e.mean),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    found, words = PROGRAM.read_known(argv, "MODEL [options of radixlm serve]")
    traffic: TrafficOptions = found["traffic"]
    options: TuneOptions = found["tune"]
    read_serve(words)
    label, higher, _ = OBJECTIVES[options.objective]
    bench = _Bench(words, traffic, options)
    start = bench.measure(())
    if start.error is not None:
        raise RadixError(start.error)
    print(f"as given: {_values(start)} {label}", flush=True)
    changes = [change for change in candidates(bench.server, traffic) if change.words[0] not in words]
    # The start was measured already: it is what told which settings matter here.
    pending = [start]
    result = search(
        lambda settings: pending.pop() if pending else bench.measure(settings),
        changes,
        options.budget_s - start.seconds,
        higher,
        time.monotonic,
        lambda step: print(_told(step), flush=True),
    )
    print(report(result, words, label))
    return 0


class _Bench:
    """Measures settings; `server` is what the last server said of itself."""

    def __init__(self, words: Sequence[str], traffic: TrafficOptions, options: TuneOptions) -> None:
        self._words = list(words)
        self._traffic = traffic
        self._options = options
        self.server: dict[str, Any] = {}

    def measure(self, settings: Settings) -> Trial:
        """A server with these settings, and the traffic sent to it `repeat` times with seeds of their own."""
        began = time.monotonic()
        values: list[float] = []
        try:
            with launched([*self._words, *settings, "--enable-cache-report"]) as server:
                for number in range(self._options.repeat):
                    values.append(self._one(server.url, self._options.seed + number))
        except RadixError as error:
            return Trial(settings, (), time.monotonic() - began, str(error))
        return Trial(settings, tuple(values), time.monotonic() - began)

    def _one(self, url: str, seed: int) -> float:
        finished = run_async(run(_options(self._traffic, url, seed)))
        self.server = finished.server_info or {}
        if finished.metrics.failed:
            raise RadixError(f"{finished.metrics.failed} requests failed: {'; '.join(finished.metrics.errors)}")
        return OBJECTIVES[self._options.objective][2](finished)


def _options(traffic: TrafficOptions, url: str, seed: int) -> Options:
    """One run of the benchmark client."""
    count = traffic.requests or 4 * traffic.concurrency
    spec, backend = dataset(traffic, count)
    load = LoadOptions(max_concurrency=traffic.concurrency, seed=seed, flush_cache=True, warmup_requests=2)
    return Options(TargetOptions(backend=backend, base_url=url), load, spec, OutputOptions(disable_tqdm=True))


def dataset(traffic: TrafficOptions, count: int) -> tuple[DatasetSpec, str]:
    """The traffic as a dataset, and the backend that can send it."""
    if traffic.traffic is not None:
        name = kind_of(traffic.traffic)
        backend = "sglang-oai-chat" if name == "openai" else "sglang"
        return DatasetSpec(name, traffic.traffic, num_prompts=count), backend
    if traffic.shared_prefix:
        groups = min(traffic.prefixes, count)
        shared = DatasetSpec(
            "generated-shared-prefix",
            gsp_num_groups=groups,
            gsp_prompts_per_group=max(count // groups, 1),
            gsp_system_prompt_len=traffic.shared_prefix,
            gsp_question_len=traffic.input_tokens,
            gsp_output_len=traffic.output_tokens,
            tokenize_prompt=True,
        )
        return shared, "sglang"
    alone = DatasetSpec(
        "random-ids",
        num_prompts=count,
        random_input_len=traffic.input_tokens,
        random_output_len=traffic.output_tokens,
        random_range_ratio=1.0,
        tokenize_prompt=True,
    )
    return alone, "sglang"


def kind_of(path: str) -> str:
    """The dataset that reads a file of recorded traffic, by its first line."""
    try:
        with Path(path).open("rb") as file:
            row = msgspec.json.decode(file.readline())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: the first line is not JSON ({error})") from None
    keys = row.keys() if isinstance(row, dict) else set()
    for key, name in (("hash_ids", "mooncake"), ("messages", "openai"), ("conversations", "custom")):
        if key in keys:
            return name
    raise ConfigError(f"{path}: no conversations, messages or hash_ids in its first line")


def candidates(server: dict[str, Any], traffic: TrafficOptions) -> list[Change]:
    """The changes worth trying on this machine for this traffic, the likeliest first."""
    cuda = server.get("device") == "cuda"
    chunk, running = _number(server, "chunked_prefill_size"), _number(server, "max_running_requests")
    pool, page = _number(server, "max_total_num_tokens"), _number(server, "page_size") or 1
    request_tokens = traffic.shared_prefix + traffic.input_tokens + traffic.output_tokens
    found: list[Change] = []
    for factor in (2, 4, 0.5):
        size = int((chunk or 0) * factor) // page * page
        if chunk and chunk > 0 and size >= page:
            why = "prompts are computed faster" if factor > 1 else "running requests wait less for prompts"
            found.append(Change(("--chunked-prefill-size", str(size)), why))
    if traffic.shared_prefix or traffic.traffic:
        found.append(Change(("--schedule-policy", "lpm"), "requests with a cached beginning go first"))
    if running and traffic.concurrency > 8:
        half = min(traffic.concurrency, running) // 2
        found.append(Change(("--max-running-requests", str(half)), "fewer at once, each sooner done"))
    if running and running < traffic.concurrency:
        found.append(Change(("--max-running-requests", str(traffic.concurrency)), "nobody waits for a place"))
    if pool and pool < 2 * traffic.concurrency * request_tokens:
        found.append(Change(("--schedule-conservativeness", "0.3"), "less memory is held back for outputs"))
        share = _number(server, "mem_fraction_static")
        if share and share < 0.9:
            larger = f"{min(share + 0.05, 0.92):.2f}"
            found.append(Change(("--mem-fraction-static", larger), "a larger KV pool"))
    if not cuda and page > 1:
        found.append(Change(("--page-size", str(2 * page)), "longer reads from the cache"))
    if cuda:
        found.append(Change(("--disable-overlap-schedule",), "no step is computed in vain"))
    return found


def _number(server: dict[str, Any], key: str) -> Any:
    value = server.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _values(trial: Trial) -> str:
    return f"{trial.mean:.1f} ({min(trial.values):.1f} to {max(trial.values):.1f})"


def _told(step: Step) -> str:
    words = " ".join(step.change.words)
    if step.gain is None or step.margin is None:
        return f"{words}: failed ({step.trial.error})"
    verdict = "kept" if step.kept else "worse" if step.gain < -step.margin else "no gain beyond the noise"
    return f"{words}: {_values(step.trial)}, {100 * step.gain:+.1f} % +-{100 * step.margin:.1f} %: {verdict}"


def report(result: Search, words: Sequence[str], label: str) -> str:
    """What was tried, and the command line to use."""
    rows = [["setting", label, "gain", "noise", ""]]
    rows.append(["as given", f"{result.start.mean:.1f}", "", "", f"{len(result.start.values)} runs"])
    for step in result.steps:
        shown = "failed" if step.trial.error is not None else f"{step.trial.mean:.1f}"
        gain = "n/a" if step.gain is None else f"{100 * step.gain:+.1f} %"
        margin = "n/a" if step.margin is None or math.isinf(step.margin) else f"{100 * step.margin:.1f} %"
        verdict = "kept" if step.kept else step.trial.error or step.change.reason
        rows.append([" ".join(step.change.words), shown, gain, margin, verdict])
    lines = ["", table(rows), ""]
    if result.left:
        lines.append(f"no time for: {', '.join(' '.join(change.words) for change in result.left)} (--budget-s)")
    if result.confirmed is not None:
        total, noise = result.confirmed
        sure = "confirmed" if total > noise else "NOT confirmed: it is within the noise"
        lines.append(f"all kept changes together, measured again: {100 * total:+.1f} % +-{100 * noise:.1f} %, {sure}")
    elif result.settings:
        lines.append("the kept changes were not measured again: no time was left (--budget-s)")
    if not result.settings:
        lines.append("nothing tried beats the settings as given by more than the noise; keep them:")
    lines.append(" ".join(["radixlm", "serve", *words, *result.settings]))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""The values of the metrics, and their Prometheus text. Fed by hooks; a fault in here never reaches the caller.

Values live in plain Python cells and become Prometheus families only when they are read, so that a hook costs a
dictionary look-up and an addition. One thread (the event loop's) feeds and reads.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from radixlm.base.log import get
from radixlm.observability import buckets as edge_rules
from radixlm.observability.record import RequestRecord
from radixlm.observability.rows import ROWS, Ready, Row, Stats

log = get(__name__)

P = ParamSpec("P")


class Reason(Protocol):
    """Why a request ended (protocol.messages.FinishReason has this shape)."""

    @property
    def type(self) -> str: ...
    @property
    def status_code(self) -> int | None: ...


class Ended(Protocol):
    """The final counts of a request (protocol.messages.Finished has this shape)."""

    @property
    def reason(self) -> Reason: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class BucketOverrides:
    """Histogram edges from the command line; None keeps SGLang's. The token rules are those of `token_count_edges`."""

    time_to_first_token: Sequence[float] | None = None
    inter_token_latency: Sequence[float] | None = None
    e2e_request_latency: Sequence[float] | None = None
    prompt_tokens: Sequence[str] | None = None
    generation_tokens: Sequence[str] | None = None

    def edges(self) -> dict[str, tuple[float, ...]]:
        """Edges by metric name; ConfigError names the flag of one that makes no sense."""
        prompt = edge_rules.token_count_edges(self.prompt_tokens, "--prompt-tokens-buckets")
        output = edge_rules.token_count_edges(self.generation_tokens, "--generation-tokens-buckets")
        per_token = edge_rules.edges(self.inter_token_latency, edge_rules.PER_TOKEN_S, "--bucket-inter-token-latency")
        ttft = edge_rules.edges(
            self.time_to_first_token, edge_rules.TIME_TO_FIRST_TOKEN_S, "--bucket-time-to-first-token"
        )
        return {
            "time_to_first_token_seconds": ttft,
            "inter_token_latency_seconds": per_token,
            "e2e_request_latency_seconds": edge_rules.edges(
                self.e2e_request_latency, edge_rules.E2E_S, "--bucket-e2e-request-latency"
            ),
            "prompt_tokens_histogram": prompt,
            "uncached_prompt_tokens_histogram": prompt,
            "generation_tokens_histogram": output,
        }


class Cell:
    """One histogram series: counts per bucket (the last is +Inf) and the sum of what was observed."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.edges, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        cumulative = 0
        pairs: list[tuple[str, float]] = []
        for edge, count in zip([*map(repr, self.edges), "+Inf"], self.counts, strict=True):
            cumulative += count
            pairs.append((edge, cumulative))
        return pairs


class Family:
    """All series of one metric, by the values of its varying labels."""

    def __init__(self, row: Row, edges: tuple[float, ...]) -> None:
        self.row = row
        self.values: dict[tuple[str, ...], float] = {}
        self.cells: dict[tuple[str, ...], Cell] = {}
        self._edges = edges
        if not row.labels and not row.stats and not row.ready:
            self.touch()

    def touch(self, *labels: str) -> None:
        """Let the series exist, at 0, before its first event."""
        if self.row.kind == "histogram":
            self.cell(*labels)
        else:
            self.values.setdefault(labels, 0.0)

    def add(self, amount: float, *labels: str) -> None:
        self.values[labels] = self.values.get(labels, 0.0) + amount

    def set(self, value: float, *labels: str) -> None:
        self.values[labels] = value

    def cell(self, *labels: str) -> Cell:
        found = self.cells.get(labels)
        if found is None:
            found = self.cells[labels] = Cell(self._edges)
        return found

    def collect(self, base: Mapping[str, str], extra: Mapping[str, str]) -> Metric | None:
        """The Prometheus family, None while it has no series. `base` has a value for each label name in `row.base`."""
        if not self.values and not self.cells:
            return None
        row = self.row
        more = extra if "model_name" in row.base else {}
        names = [*row.base, *more, *row.labels]
        fixed = [*(base[name] for name in row.base), *more.values()]
        if row.kind == "histogram":
            histogram = HistogramMetricFamily(row.full_name, row.meaning, labels=names)
            for labels, cell in self.cells.items():
                histogram.add_metric([*fixed, *labels], cell.buckets(), cell.total)
            return histogram
        make = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
        family = make(row.full_name, row.meaning, labels=names)
        for labels, value in self.values.items():
            family.add_metric([*fixed, *labels], value)
        return family


def _guarded(hook: "Callable[Concatenate[Metrics, P], None]") -> "Callable[Concatenate[Metrics, P], None]":
    """A fault in a hook is logged once per hook and goes no further."""

    def safe(self: "Metrics", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            hook(self, *args, **kwargs)
        except Exception:
            self.report_fault(hook.__name__)

    safe.__doc__ = hook.__doc__
    return safe


def _streaming(stream: bool) -> str:
    return "true" if stream else "false"


class Metrics:
    """What the server counts, under SGLang's names, in a registry of its own."""

    def __init__(
        self,
        model_name: str,
        engine_type: str = "unified",
        buckets: BucketOverrides | None = None,
        extra_labels: Mapping[str, str] | None = None,
    ) -> None:
        """`extra_labels` are put on every metric that has `model_name`."""
        self._extra = dict(extra_labels or {})
        self._base = {
            "model_name": model_name,
            "engine_type": engine_type,
            "cache_type": "radix",
            **dict.fromkeys(("tp_rank", "pp_rank", "moe_ep_rank", "dp_rank"), "0"),
        }
        edges = (buckets or BucketOverrides()).edges()
        self._families = {row.name: Family(row, edges.get(row.name, row.edges)) for row in ROWS}
        self._faults: set[str] = set()
        self._retracted_before = 0
        self._per_token = self._families["inter_token_latency_seconds"].cell()
        for row in ROWS:
            if row.labels == ("is_streaming",):
                self._families[row.name].touch("false")
                self._families[row.name].touch("true")
        self._families["cached_tokens_total"].touch("device")
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Source(self.families))

    @_guarded
    def received(self, stream: bool) -> None:
        """A request was handed to the scheduler."""
        self._families["num_requests_received_total"].add(1, _streaming(stream))

    @_guarded
    def first_token(self, stream: bool, seconds: float) -> None:
        """A request's first output came `seconds` after its arrival."""
        self._families["time_to_first_token_seconds"].cell(_streaming(stream)).observe(seconds)

    @_guarded
    def inter_token(self, seconds: float, tokens: int) -> None:
        """`tokens` more tokens of a request came `seconds` after the ones before."""
        if tokens > 0:
            self._per_token.observe(seconds / tokens, tokens)

    @_guarded
    def finished(
        self,
        finished: Ended,
        stream: bool,
        e2e_s: float,
        first_token_s: float | None,
        tokens: int,
        queue_time_s: float | None,
    ) -> None:
        """A request ended after `e2e_s`; refusals (an abort with a status) are not counted as requests."""
        if finished.reason.type == "abort" and finished.reason.status_code is not None:
            return
        families, label = self._families, _streaming(stream)
        families["num_requests_total"].add(1, label)
        families["prompt_tokens_total"].add(finished.prompt_tokens, label)
        families["generation_tokens_total"].add(finished.completion_tokens, label)
        families["cached_tokens_total"].add(finished.cached_tokens, "device")
        families["prompt_tokens_histogram"].cell().observe(finished.prompt_tokens)
        families["uncached_prompt_tokens_histogram"].cell().observe(finished.prompt_tokens - finished.cached_tokens)
        families["generation_tokens_histogram"].cell().observe(finished.completion_tokens)
        families["e2e_request_latency_seconds"].cell(label).observe(e2e_s)
        if queue_time_s is not None:
            families["queue_time_seconds"].cell().observe(queue_time_s)
        timed = tokens > 1 and finished.reason.type in ("stop", "length")
        if timed and first_token_s is not None and first_token_s < e2e_s:
            per_token = families["request_time_per_output_token_seconds"].cell(label)
            per_token.observe((e2e_s - first_token_s) / (tokens - 1))

    @_guarded
    def aborted(self) -> None:
        """A client ended its request: it hung up or asked for it."""
        self._families["num_aborted_requests_total"].add(1)

    @_guarded
    def record(self, record: RequestRecord) -> None:
        """A request ended: how long its stages took."""
        stages = self._families["per_stage_req_latency_seconds"]
        stages.cell("request_process").observe(record.sent_s)
        if record.stream and record.first_token_s is not None and record.started_s is not None:
            stages.cell("prefill_forward").observe(max(record.first_token_s - record.started_s, 0.0))

    @_guarded
    def loads(self, seconds: float) -> None:
        """/v1/loads was answered."""
        self._families["get_loads_duration_seconds"].cell().observe(seconds)

    @_guarded
    def stats(self, stats: Stats) -> None:
        """The scheduler's pulse."""
        for row in ROWS:
            family = self._families[row.name]
            for label, read in row.stats.items():
                family.set(read(stats), *([label] if label else []))
            for labels, value in row.many(stats).items() if row.many is not None else ():
                family.set(value, *labels.split("|"))
        self._families["num_retracted_reqs"].set(stats.num_retracted_requests_total - self._retracted_before)
        self._retracted_before = stats.num_retracted_requests_total

    @_guarded
    def ready(self, ready: Ready) -> None:
        """The scheduler's start-up facts."""
        for row in ROWS:
            for label, read in row.ready.items():
                value = read(ready)
                if value is not None:
                    self._families[row.name].set(value, *([label] if label else []))

    @_guarded
    def startup(self, phase: str, seconds: float) -> None:
        """A phase of the start took `seconds`: load_weight, kv_cache_allocation, scheduler_e2e, tokenizer_e2e."""
        self._families["startup_time_seconds"].set(seconds, phase)

    @_guarded
    def http_request(self, endpoint: str, method: str) -> None:
        """A request came in on the route `endpoint` (its pattern, so that there are few)."""
        self._families["http_requests_total"].add(1, endpoint, method)
        self._families["http_requests_active"].add(1)

    @_guarded
    def http_response(self, endpoint: str, method: str, status: int) -> None:
        """The request is answered, or its client is gone (499)."""
        self._families["http_responses_total"].add(1, endpoint, str(status), method)
        self._families["http_requests_active"].add(-1)

    def families(self) -> Iterator[Metric]:
        """Everything that has a value, as Prometheus families."""
        self._families["process_cpu_seconds_total"].set(time.process_time(), "tokenizer")
        for family in self._families.values():
            collected = family.collect(self._base, self._extra)
            if collected is not None:
                yield collected

    def render(self) -> bytes:
        """The Prometheus text format, version 0.0.4."""
        return generate_latest(self._registry)

    def report_fault(self, hook: str) -> None:
        if hook not in self._faults:
            self._faults.add(hook)
            log.exception("metrics: the hook %s failed; its numbers are wrong from here on", hook)


class _Source(Collector):
    """What the registry asks at each scrape."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()


class NullMetrics:
    """The same hooks without effect, for servers without --enable-metrics."""

    def received(self, stream: bool) -> None: ...

    def first_token(self, stream: bool, seconds: float) -> None: ...

    def inter_token(self, seconds: float, tokens: int) -> None: ...

    def finished(
        self,
        finished: Ended,
        stream: bool,
        e2e_s: float,
        first_token_s: float | None,
        tokens: int,
        queue_time_s: float | None,
    ) -> None: ...

    def aborted(self) -> None: ...

    def record(self, record: RequestRecord) -> None: ...

    def loads(self, seconds: float) -> None: ...

    def stats(self, stats: Stats) -> None: ...

    def ready(self, ready: Ready) -> None: ...

    def startup(self, phase: str, seconds: float) -> None: ...

    def http_request(self, endpoint: str, method: str) -> None: ...

    def http_response(self, endpoint: str, method: str, status: int) -> None: ...

    def render(self) -> bytes:
        return b""


MetricsSink = Metrics | NullMetrics

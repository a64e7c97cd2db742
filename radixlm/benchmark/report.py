"""A run's result for people and programs: SGLang's banner and JSONL keys, and ours after them. Measures nothing."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import msgspec

from radixlm.benchmark.backends import BACKENDS
from radixlm.benchmark.metrics import CacheHits, Distribution, Metrics
from radixlm.benchmark.options import Options
from radixlm.benchmark.outcome import Outcome, Request

WIDTH = 50
LABEL_WIDTH = 40
BUSY_CLIENT_PERCENT = 80.0
LENGTH_TOLERANCE = 0.01
QUEUE_SHARE = 0.05
SECRET_KEYS = frozenset({"api_key", "admin_api_key", "hf_token"})


@dataclass(frozen=True)
class Run:
    """A finished run: what was asked, what was sent, what came back. `retokenized`: None without a tokenizer."""

    options: Options
    requests: Sequence[Request]
    outcomes: Sequence[Outcome]
    metrics: Metrics
    client_cpu_percent: float
    client_processes: int
    server_info: dict[str, Any] | None
    retokenized: int | None

    @property
    def accept_length(self) -> float | None:
        """The server's own running mean (not this run's), None when it does not speculate."""
        states = (self.server_info or {}).get("internal_states")
        first = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
        value = first.get("avg_spec_accept_length")
        return float(value) if isinstance(value, (int, float)) else None


def record(run: Run) -> dict[str, Any]:
    """The JSONL line: SGLang's keys in its order, then ours. Rates that are infinite are the text "inf"."""
    options, m, dataset = run.options, run.metrics, run.options.dataset
    line: dict[str, Any] = {
        "tag": options.output.tag,
        "backend": options.target.backend,
        "dataset_name": dataset.dataset_name,
        "request_rate": _finite(options.load.request_rate),
        "max_concurrency": options.load.max_concurrency,
        "sharegpt_output_len": dataset.sharegpt_output_len,
        "random_input_len": dataset.random_input_len,
        "random_output_len": dataset.random_output_len,
        "random_range_ratio": dataset.random_range_ratio,
        "server_info": run.server_info,
        "duration": m.duration_s,
        "completed": m.completed,
        "total_input_tokens": m.input_tokens,
        "total_input_text_tokens": m.input_tokens,
        "total_input_vision_tokens": 0,
        "total_output_tokens": m.output_tokens,
        "total_output_tokens_retokenized": run.retokenized,
        "request_throughput": m.request_throughput,
        "input_throughput": m.input_throughput,
        "output_throughput": m.output_throughput,
        "total_throughput": m.total_throughput,
    }
    for name, latency in _latencies(m).items():
        line |= {f"{key}_{name}_ms": value for key, value in asdict(latency).items() if key != "max"}
    line |= {
        "concurrency": m.concurrency,
        "accept_length": run.accept_length,
        "max_output_tokens_per_s": m.peak_output_tokens_per_s,
        "max_concurrent_requests": m.peak_concurrent,
    }
    if options.output.cache_report:
        line["cache_report"] = _cache_report(m.cache)
    line |= _own_keys(run)
    if options.output.output_details:
        line |= _details(run)
    return line


def _latencies(m: Metrics) -> dict[str, Distribution]:
    return {"e2e_latency": m.e2e, "ttft": m.ttft, "tpot": m.tpot, "itl": m.itl}


def _cache_report(cache: CacheHits) -> dict[str, Any]:
    return {
        "total_prompt_tokens": cache.prompt_tokens,
        "total_cached_tokens": cache.cached_tokens,
        "cache_hit_rate_pct": 100.0 * (cache.rate or 0.0),
        "device_cached_tokens": cache.device_tokens,
        "host_cached_tokens": cache.host_tokens,
        "storage_cached_tokens": cache.storage_tokens,
        "storage_backend": cache.storage_backend,
    }


def _own_keys(run: Run) -> dict[str, Any]:
    """What SGLang's line lacks, and a reader needs to judge it."""
    m, options = run.metrics, run.options
    return {
        "client": "radixlm",
        "model": options.target.model,
        "num_prompts": len(run.requests),
        "failed": m.failed,
        "errors_sample": list(m.errors),
        "seed": options.load.seed,
        "warmup_requests": options.load.warmup_requests,
        "flush_cache": options.load.flush_cache,
        "stream": not options.load.disable_stream and BACKENDS[options.target.backend].generates,
        "ignore_eos": not options.load.disable_ignore_eos,
        "tokenize_prompt": options.dataset.tokenize_prompt,
        "client_cpu_percent": run.client_cpu_percent,
        "client_processes": run.client_processes,
        "max_itl_ms": m.itl.max,
        "mean_client_queue_ms": m.queue.mean,
        "max_client_queue_ms": m.queue.max,
        "total_requested_output_tokens": m.requested_output_tokens,
        "output_lens_assumed": m.assumed_outputs,
        "server_prompt_tokens": m.server_prompt_tokens,
        "cache_hit_rate": m.cache.rate if m.cache.reported else None,
        "cache_reported_requests": m.cache.reported,
    }


def _details(run: Run) -> dict[str, Any]:
    """One entry per request in every list, in the dataset's order; a failed request has its error there."""
    outcomes = run.outcomes
    details: dict[str, Any] = {
        "input_lens": [outcome.prompt_tokens(run.requests[outcome.index]) for outcome in outcomes],
        "output_lens": [outcome.output_tokens if outcome.error is None else 0 for outcome in outcomes],
        "ttfts": [outcome.ttft_s if outcome.error is None else 0.0 for outcome in outcomes],
        "itls": [outcome.inter_token_s() for outcome in outcomes],
        "generated_texts": [outcome.text for outcome in outcomes],
        "errors": [outcome.error or "" for outcome in outcomes],
    }
    if run.options.output.cache_report:
        details["cached_tokens"] = [outcome.cached_tokens or 0 for outcome in outcomes]
        details["cached_tokens_details"] = [outcome.cached_details for outcome in outcomes]
    return details


def encode_line(line: dict[str, Any]) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(line) + b"\n"


def without_secrets(server_info: dict[str, Any]) -> dict[str, Any]:
    """A server's description fit to be kept in a file: keys' values are blotted out."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: "***" if k in SECRET_KEYS and v else clean(v) for k, v in value.items()}
        return [clean(item) for item in value] if isinstance(value, list) else value

    cleaned: dict[str, Any] = clean(server_info)
    return cleaned


def output_file_name(options: Options, now: datetime) -> str:
    """Where the line goes when the user named no file: by backend, date, count, and lengths or dataset."""
    dataset = options.dataset
    random = dataset.dataset_name.startswith("random")
    rest = f"{dataset.random_input_len}_{dataset.random_output_len}" if random else dataset.dataset_name
    return f"{options.target.backend}_{now:%m%d}_{dataset.num_prompts}_{rest}.jsonl"


def banner(run: Run) -> str:
    """The result as text, in SGLang's layout; ends with what to beware of in these numbers."""
    m, options = run.metrics, run.options
    lines = [
        "",
        f"{' Serving Benchmark Result ':=^{WIDTH}}",
        _row("Backend", options.target.backend),
        _row("Traffic request rate", _finite(options.load.request_rate)),
        _row("Max request concurrency", options.load.max_concurrency or "not set"),
        _row("Successful requests", m.completed),
        _row("Failed requests", m.failed),
        _row("Benchmark duration (s)", m.duration_s),
        _row("Total input tokens", m.input_tokens),
        _row("Total input text tokens", m.input_tokens),
        _row("Total generated tokens", m.output_tokens),
        _row("Total generated tokens (retokenized)", "n/a" if run.retokenized is None else run.retokenized),
        _row("Request throughput (req/s)", m.request_throughput),
        _row("Input token throughput (tok/s)", m.input_throughput),
        _row("Output token throughput (tok/s)", m.output_throughput),
        _row("Peak output token throughput (tok/s)", m.peak_output_tokens_per_s),
        _row("Peak concurrent requests", m.peak_concurrent),
        _row("Total token throughput (tok/s)", m.total_throughput),
        _row("Concurrency", m.concurrency),
        *([] if run.accept_length is None else [_row("Accept length", run.accept_length)]),
        _row("Cache hit rate (%)", "not reported" if not m.cache.reported else 100.0 * (m.cache.rate or 0.0)),
        _row("Mean client queueing (ms)", m.queue.mean),
        _row("Client CPU (% of one core)", run.client_cpu_percent),
        *_section("End-to-End Latency", "E2E Latency", m.e2e),
        *_section("Time to First Token", "TTFT", m.ttft),
        *_section("Time per Output Token (excl. 1st token)", "TPOT", m.tpot),
        *_section("Inter-Token Latency", "ITL", m.itl),
        _row("Max ITL (ms)", m.itl.max),
        *(_cache_section(m.cache) if options.output.cache_report else []),
        "=" * WIDTH,
        *(f"warning: {warning}" for warning in warnings(run)),
    ]
    return "\n".join(lines)


def warnings(run: Run) -> list[str]:
    """What makes these numbers other than they look."""
    m, load, found = run.metrics, run.options.load, []
    if m.failed:
        found.append(f"{m.failed} of {len(run.requests)} requests failed and are in no latency: {'; '.join(m.errors)}")
    if run.client_cpu_percent > BUSY_CLIENT_PERCENT:
        found.append(
            f"the client was the bottleneck ({run.client_cpu_percent:.0f} % of a core in its busiest process): "
            "use more --client-processes or another machine"
        )
    if load.disable_stream and BACKENDS[run.options.target.backend].generates:
        found.append("nothing was streamed: TTFT is the whole latency, TPOT and ITL are not measured")
    if m.assumed_outputs:
        found.append(f"{m.assumed_outputs} answers came without usage: their lengths are assumed to be those asked for")
    elif m.output_tokens < (1 - LENGTH_TOLERANCE) * m.requested_output_tokens:
        found.append(f"answers ended early: {m.output_tokens} of {m.requested_output_tokens} tokens asked for")
    if math.isfinite(load.request_rate) and m.queue.mean > QUEUE_SHARE * m.e2e.mean:
        found.append(
            f"requests waited {m.queue.mean:.0f} ms on average before they were sent, which is in no latency: "
            "the server does not keep up with this rate at this concurrency"
        )
    counted = m.server_prompt_tokens
    if counted is not None and abs(counted - m.input_tokens) > LENGTH_TOLERANCE * m.input_tokens:
        found.append(f"the server counted {counted} prompt tokens, the dataset {m.input_tokens}")
    return found


def throughput_bars(run: Run) -> str:
    """Output tokens of each second of the run as bars."""
    start_s = min((outcome.due_s for outcome in run.outcomes), default=0.0)
    seconds: dict[int, int] = {}
    for outcome in run.outcomes:
        for time_s, tokens in zip(outcome.event_s, outcome.event_tokens, strict=True):
            second = int(time_s - start_s)
            seconds[second] = seconds.get(second, 0) + tokens
    most = max(seconds.values(), default=1)
    shown = range(max(seconds, default=-1) + 1)
    return "\n".join(f"{i:>5} s {seconds.get(i, 0):>8} {'#' * (WIDTH * seconds.get(i, 0) // most)}" for i in shown)


def conversation_log(run: Run) -> str:
    """Every prompt and its answer or error."""
    lines = []
    for outcome in run.outcomes:
        prompt = run.requests[outcome.index].prompt
        lines.append(f"#{outcome.index} prompt: {prompt}")
        lines.append(f"#{outcome.index} {'error: ' + outcome.error if outcome.error else 'answer: ' + outcome.text}")
    return "\n".join(lines)


def _finite(rate: float) -> float | str:
    return "inf" if math.isinf(rate) else rate


def _row(label: str, value: float | int | str) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label + ':':<{LABEL_WIDTH}} {shown:<10}".rstrip()


def _section(title: str, name: str, latency: Distribution) -> list[str]:
    values = {"Mean": latency.mean, "Median": latency.median}
    values |= {"P90": latency.p90, "P95": latency.p95, "P99": latency.p99}
    return [f"{title:-^{WIDTH}}", *(_row(f"{key} {name} (ms)", value) for key, value in values.items())]


def _cache_section(cache: CacheHits) -> list[str]:
    return [
        f"{'Cache Hit Details':-^{WIDTH}}",
        _row("Total prompt tokens", cache.prompt_tokens),
        _row("Total cached tokens", cache.cached_tokens),
        _row("Cached on device", cache.device_tokens),
        _row("Cached on host", cache.host_tokens),
        _row("Cached in storage", cache.storage_tokens),
    ]

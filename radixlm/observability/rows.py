"""The table of metrics: one row each, with its name, kind, labels, meaning and status. Holds no values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from radixlm.observability import buckets

Kind = Literal["gauge", "counter", "histogram", "summary"]
Fact = str | int | float | bool | None


class Stats(Protocol):
    """The scheduler's pulse, as far as metrics read it (protocol.messages.SchedulerStats has this shape)."""

    @property
    def num_running_reqs(self) -> int: ...
    @property
    def num_queue_reqs(self) -> int: ...
    @property
    def num_retracted_requests_total(self) -> int: ...
    @property
    def kv_available_tokens(self) -> int: ...
    @property
    def kv_evictable_tokens(self) -> int: ...
    @property
    def kv_used_tokens(self) -> int: ...
    @property
    def max_total_num_tokens(self) -> int: ...
    @property
    def gen_throughput(self) -> float: ...
    @property
    def cache_hit_rate(self) -> float: ...
    @property
    def new_token_ratio(self) -> float: ...
    @property
    def prefill_compute_tokens_total(self) -> int: ...
    @property
    def prefill_cache_tokens_total(self) -> int: ...
    @property
    def decode_tokens_total(self) -> int: ...
    @property
    def evicted_tokens_total(self) -> int: ...
    @property
    def conservation_errors_total(self) -> int: ...
    @property
    def num_grammar_queue_reqs(self) -> int: ...
    @property
    def decode_sum_seq_lens(self) -> int: ...
    @property
    def num_unique_running_routing_keys(self) -> int: ...
    @property
    def retracted_input_tokens_total(self) -> int: ...
    @property
    def retracted_output_tokens_total(self) -> int: ...
    @property
    def effective_input_tokens_total(self) -> int: ...
    @property
    def process_cpu_s_total(self) -> float: ...
    @property
    def stage_s_total(self) -> Mapping[str, float]: ...
    @property
    def passes_total(self) -> Mapping[str, int]: ...


class Ready(Protocol):
    """The start-up facts, as far as metrics read them (protocol.messages.SchedulerReady has this shape)."""

    @property
    def max_total_num_tokens(self) -> int: ...
    @property
    def page_size(self) -> int: ...
    @property
    def facts(self) -> Mapping[str, Fact]: ...


SCHEDULER = ("model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank")
FRONT = ("model_name", "engine_type")
TREE = ("cache_type", "tp_rank", "pp_rank", "dp_rank")
NONE: tuple[str, ...] = ()
PULSE = "every pulse of the scheduler"
_GIB = float(1 << 30)


@dataclass(frozen=True)
class Row:
    """One metric. Names are without the `sglang:` prefix unless `own` is set; those get `radixlm:`.

    `base` are the labels with one fixed value per server, `labels` those that vary. `stats` and `ready` read
    the value from the last pulse or the start-up facts, by value of the one varying label ("" without one); `many`
    reads values of a pulse by the values of all varying labels, joined with "|".
    `edges` are the default histogram edges. `moment` says when the value moves.
    """

    name: str
    kind: Kind
    meaning: str
    base: tuple[str, ...] = FRONT
    labels: tuple[str, ...] = ()
    moment: str = ""
    own: bool = False
    edges: tuple[float, ...] = ()
    stats: Mapping[str, Callable[[Stats], float]] = field(default_factory=dict)
    ready: Mapping[str, Callable[[Ready], float | None]] = field(default_factory=dict)
    many: Callable[[Stats], Mapping[str, float]] | None = None

    @property
    def full_name(self) -> str:
        return f"{'radixlm' if self.own else 'sglang'}:{self.name}"


def _pulse(
    name: str,
    kind: Kind,
    meaning: str,
    read: Callable[[Stats], float] | Mapping[str, Callable[[Stats], float]],
    base: tuple[str, ...] = SCHEDULER,
    labels: tuple[str, ...] = (),
    own: bool = False,
) -> Row:
    reads = read if isinstance(read, Mapping) else {"": read}
    return Row(name, kind, meaning, base, labels, PULSE, own, stats=reads)


def _constant(name: str, meaning: str, read: Callable[[Ready], float | None]) -> Row:
    return Row(name, "gauge", meaning, SCHEDULER, moment="once, at start", ready={"": read})


def _fact(name: str, scale: float = 1.0) -> Callable[[Ready], float | None]:
    def read(ready: Ready) -> float | None:
        value = ready.facts.get(name)
        return value / scale if isinstance(value, int | float) else None

    return read


def _used_fraction(stats: Stats) -> float:
    return round(stats.kv_used_tokens / stats.max_total_num_tokens, 2) if stats.max_total_num_tokens else 0.0


def _idle_s(stats: Stats) -> float:
    return sum(seconds for stage, seconds in stats.stage_s_total.items() if stage.startswith("idle|"))


STREAMING = ("is_streaming",)
FINISH = "when a request finishes"

ROWS: tuple[Row, ...] = (
    _pulse("num_running_reqs", "gauge", "requests that hold a device row", lambda s: s.num_running_reqs),
    _pulse("num_queue_reqs", "gauge", "requests that wait for admission", lambda s: s.num_queue_reqs),
    _pulse("num_grammar_queue_reqs", "gauge", "requests whose grammar is compiled", lambda s: s.num_grammar_queue_reqs),
    _pulse("decode_sum_seq_lens", "gauge", "tokens of the requests that decode", lambda s: s.decode_sum_seq_lens),
    _pulse(
        "num_unique_running_routing_keys",
        "gauge",
        "distinct routing keys of running requests",
        lambda s: s.num_unique_running_routing_keys,
    ),
    Row("num_retracted_reqs", "gauge", "retractions since the pulse before", SCHEDULER, moment=PULSE),
    _pulse("gen_throughput", "gauge", "generated tokens per second, lately", lambda s: s.gen_throughput),
    _pulse("cache_hit_rate", "gauge", "cached share of the prompt tokens, lately", lambda s: s.cache_hit_rate),
    _pulse("new_token_ratio", "gauge", "share of the possible output that is reserved", lambda s: s.new_token_ratio),
    _pulse("token_usage", "gauge", "used share of the KV pool, two decimals", _used_fraction),
    _pulse("full_token_usage", "gauge", "the same, of the full-attention pool", _used_fraction),
    _pulse("num_used_tokens", "gauge", "KV slots in use, evictable ones not counted", lambda s: s.kv_used_tokens),
    _pulse("kv_available_tokens", "gauge", "free KV slots", lambda s: s.kv_available_tokens),
    _pulse("kv_evictable_tokens", "gauge", "cached KV slots that nobody uses", lambda s: s.kv_evictable_tokens),
    _pulse("kv_used_tokens", "gauge", "KV slots in use", lambda s: s.kv_used_tokens),
    _pulse(
        "num_retracted_requests_total",
        "counter",
        "requests sent back to the queue for lack of KV slots",
        lambda s: s.num_retracted_requests_total,
    ),
    _pulse(
        "realtime_tokens_total",
        "counter",
        "tokens as they are processed; the one to use for live throughput",
        {
            "prefill_compute": lambda s: s.prefill_compute_tokens_total,
            "prefill_cache": lambda s: s.prefill_cache_tokens_total,
            "decode": lambda s: s.decode_tokens_total,
        },
        labels=("mode",),
    ),
    _pulse(
        "num_retracted_input_tokens_total",
        "counter",
        "prompt tokens of retracted requests",
        lambda s: s.retracted_input_tokens_total,
    ),
    _pulse(
        "num_retracted_output_tokens_total",
        "counter",
        "output tokens that retracted requests had",
        lambda s: s.retracted_output_tokens_total,
    ),
    _pulse(
        "prefill_effective_tokens_total",
        "counter",
        "prompt tokens of requests that started, once each, and how many of them were cached",
        {
            "input": lambda s: s.effective_input_tokens_total,
            "device_hit": lambda s: s.prefill_cache_tokens_total,
        },
        labels=("mode",),
    ),
    Row(
        "cuda_graph_passes_total",
        "counter",
        "forward passes, from a captured graph or not",
        SCHEDULER,
        labels=("mode",),
        moment=PULSE,
        many=lambda s: s.passes_total,
    ),
    _pulse("scheduler_idle_seconds_total", "counter", "time without anything to do", _idle_s),
    _pulse(
        "scheduler_process_cpu_seconds_total",
        "counter",
        "CPU time of the scheduler process",
        lambda s: s.process_cpu_s_total,
    ),
    Row(
        "scheduler_stage_seconds_total",
        "counter",
        "time of the scheduler's loop by stage; overlap is full while the device computes an earlier step",
        SCHEDULER,
        labels=("category", "forward_overlap"),
        moment=PULSE,
        many=lambda s: s.stage_s_total,
    ),
    _pulse("evicted_tokens_total", "counter", "KV slots freed by eviction", lambda s: s.evicted_tokens_total, TREE),
    _pulse(
        "conservation_errors_total",
        "counter",
        "times that free + private + cached pages were not all pages; anything above 0 is a bug",
        lambda s: s.conservation_errors_total,
        own=True,
    ),
    _constant("max_total_num_tokens", "size of the KV pool in tokens", lambda r: r.max_total_num_tokens),
    _constant("page_size", "tokens per KV page", lambda r: r.page_size),
    _constant("num_pages", "KV pages in the pool", lambda r: r.max_total_num_tokens // max(r.page_size, 1)),
    _constant("context_len", "longest sequence the server accepts, in tokens", _fact("context_len")),
    _constant("weight_memory_usage_gb", "memory of the weights, in GiB", _fact("weights_bytes", _GIB)),
    _constant("kv_cache_memory_usage_gb", "memory of the KV pool, in GiB", _fact("kv_cache_bytes", _GIB)),
    Row(
        "startup_time_seconds",
        "gauge",
        "how long a phase of the start took",
        labels=("phase",),
        moment="once, at start",
        ready={
            "load_weight": _fact("load_weight_s"),
            "kv_cache_allocation": _fact("kv_cache_allocation_s"),
            "scheduler_e2e": _fact("scheduler_e2e_s"),
        },
    ),
    Row(
        "weight_load_duration_seconds",
        "gauge",
        "how long the weights took to load",
        SCHEDULER,
        labels=("source",),
        moment="once, at start",
        ready={"disk": _fact("load_weight_s")},
    ),
    Row(
        "startup_cuda_graph_time_seconds",
        "gauge",
        "how long capturing graphs took",
        labels=("phase",),
        moment="once, at start",
        ready={"decode": _fact("decode_cuda_graph_s")},
    ),
    Row(
        "graph_memory_usage_gb",
        "gauge",
        "memory of captured graphs, in GiB",
        SCHEDULER,
        labels=("phase",),
        moment="once, at start",
        ready={"decode": _fact("decode_cuda_graph_memory_gb")},
    ),
    _constant(
        "startup_available_gpu_memory_gb",
        "memory that was left when the server was ready, in GiB; on the CPU of the machine",
        _fact("startup_available_bytes", _GIB),
    ),
    Row("prompt_tokens_total", "counter", "prompt tokens of finished requests", labels=STREAMING, moment=FINISH),
    Row("generation_tokens_total", "counter", "output tokens of finished requests", labels=STREAMING, moment=FINISH),
    Row(
        "cached_tokens_total",
        "counter",
        "prompt tokens that were not computed",
        labels=("cache_source",),
        moment=FINISH,
    ),
    Row("num_requests_total", "counter", "finished requests, user aborts included", labels=STREAMING, moment=FINISH),
    Row("num_aborted_requests_total", "counter", "requests ended by their client", moment="on abort"),
    Row(
        "num_requests_received_total",
        "counter",
        "requests handed to the scheduler",
        labels=STREAMING,
        moment="on arrival",
        own=True,
    ),
    Row(
        "time_to_first_token_seconds",
        "histogram",
        "arrival to first output, streaming or not",
        labels=STREAMING,
        moment="with the first token",
        edges=buckets.TIME_TO_FIRST_TOKEN_S,
    ),
    Row(
        "inter_token_latency_seconds",
        "histogram",
        "gap between two outputs ÷ tokens in the second, once per token",
        moment="with every output after the first",
        edges=buckets.PER_TOKEN_S,
    ),
    Row(
        "request_time_per_output_token_seconds",
        "histogram",
        "(finish − first token) ÷ (outputs − 1), of stop and length ends whose tokens did not all come at once",
        labels=STREAMING,
        moment=FINISH,
        edges=buckets.PER_TOKEN_S,
    ),
    Row(
        "e2e_request_latency_seconds",
        "histogram",
        "arrival to finish",
        labels=STREAMING,
        moment=FINISH,
        edges=buckets.E2E_S,
    ),
    Row(
        "queue_time_seconds",
        "histogram",
        "arrival in the waiting queue to first scheduling",
        SCHEDULER,
        moment=FINISH,
        edges=buckets.QUEUE_TIME_S,
    ),
    Row(
        "per_stage_req_latency_seconds",
        "histogram",
        "request_process: arrival to the scheduler; prefill_forward: first scheduling to first token, of streams",
        SCHEDULER,
        labels=("stage",),
        moment=FINISH,
        edges=buckets.STAGE_S,
    ),
    Row("prompt_tokens_histogram", "histogram", "prompt lengths", moment=FINISH, edges=buckets.TOKEN_COUNTS),
    Row(
        "uncached_prompt_tokens_histogram",
        "histogram",
        "prompt lengths without their cached part",
        moment=FINISH,
        edges=buckets.TOKEN_COUNTS,
    ),
    Row("generation_tokens_histogram", "histogram", "output lengths", moment=FINISH, edges=buckets.TOKEN_COUNTS),
    Row(
        "http_requests_total", "counter", "requests by route", NONE, labels=("endpoint", "method"), moment="on arrival"
    ),
    Row(
        "http_responses_total",
        "counter",
        "answers by route and status; 499 is a client that hung up",
        NONE,
        labels=("endpoint", "status_code", "method"),
        moment="when the answer is complete",
    ),
    Row("http_requests_active", "gauge", "requests being answered", NONE, moment="always"),
    Row(
        "process_cpu_seconds_total",
        "counter",
        "CPU time of the HTTP process (tokenizer) and of the scheduler",
        NONE,
        labels=("component",),
        moment="always",
        stats={"scheduler": lambda s: s.process_cpu_s_total},
    ),
    Row(
        "get_loads_duration_seconds",
        "histogram",
        "how long /v1/loads took",
        moment="on each /v1/loads",
        edges=buckets.GET_LOADS_S,
    ),
)

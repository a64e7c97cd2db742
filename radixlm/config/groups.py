"""The flags, grouped by the component that reads them. Frozen; each component is handed its own group and no other.

None means: a resolution rule (config/resolve.py) fills it in. Python keywords, YAML keys, JSON and /server_info are
all the flat view, under SGLang's names.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from radixlm.base.errors import ConfigError
from radixlm.config.attention_names import (
    DECODE_BACKENDS,
    ENCODER_BACKENDS,
    PREFILL_BACKENDS,
    decode_backend,
    prefill_backend,
)
from radixlm.config.flags import (
    REQUIRED,
    FlagField,
    at_least,
    flag,
    flags_of,
    human_int,
    increasing,
    json_text,
    option_of,
    refuse_idle,
    strictly_between,
    string_labels,
    whole_numbers,
    within,
)
from radixlm.config.kv_events import kv_events_text
from radixlm.config.manifest import find_row, unsupported
from radixlm.config.parser_names import REASONING_PARSERS, TOOL_CALL_PARSERS

_HIDDEN = "********"
_POLICIES = ("fcfs", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first", "lof", "random", "routing-key")
_EVICTIONS = ("lru", "lfu", "slru", "tlru", "priority", "fifo", "filo", "mru")
_BUCKETS = "histogram bucket edges, in seconds"
_TOKEN_RULE = "`default`, `custom` and the bucket edges, or `tse` MIDDLE BASE COUNT"


def _served_name(name: str) -> str | None:
    return "may not contain ':'" if ":" in name else None


def _one_at_most(workers: int) -> str | None:
    return None if workers in (0, 1) else "must be 0 or 1: one makes text of more tokens than an engine has"


def _not_empty(text: str) -> str | None:
    return None if text else "may not be empty"


def _root_path(path: str) -> str | None:
    return None if not path or (path.startswith("/") and not path.endswith("/")) else "must look like /prefix"


def _sizes(sizes: tuple[int, ...]) -> str | None:
    return None if sizes and min(sizes) >= 1 else "must be positive integers"


@dataclass(frozen=True)
class ModelConfig:
    """What the loader reads: which weights, and how."""

    model_path: str = flag(
        REQUIRED,
        "the model: a Hugging Face id, a folder, a .gguf file, or `demo`; also accepted as first argument",
        aliases=("--model",),
        check=_not_empty,
    )
    tokenizer_path: str | None = flag(None, "where the tokenizer is, when not with the model")
    load_format: str = flag("auto", "weight files to read", choices=("auto", "safetensors", "gguf", "dummy"))
    dtype: str = flag(
        "auto", "precision of computation", choices=("auto", "half", "float16", "bfloat16", "float", "float32")
    )
    context_length: int | None = flag(
        None,
        "longest sequence, prompt and output together; at most the model's own",
        parse=human_int,
        check=at_least(2),
    )
    is_embedding: bool = flag(
        False, "make embeddings with a causal model; encoders and classifiers need no flag: see docs/embeddings.md"
    )
    revision: str | None = flag(None, "branch, tag or commit to take from the hub")
    download_dir: str | None = flag(None, "folder for downloads from the hub")
    json_model_override_args: str = flag(
        "{}", "JSON object laid over the model's config.json", parse=json_text, metavar="JSON"
    )


@dataclass(frozen=True)
class ServerConfig:
    """What the HTTP process reads: the server and the text front end."""

    host: str = flag("127.0.0.1", "address to listen on")
    port: int = flag(30000, "port to listen on; 0 takes any free one", check=within(0, 65535))
    api_key: str | None = flag(None, "bearer token that clients must send", secret=True, check=_not_empty)
    admin_api_key: str | None = flag(
        None, "bearer token of the control routes, which then refuse --api-key", secret=True, check=_not_empty
    )
    fastapi_root_path: str = flag(
        "", "path prefix under which a proxy that strips it shows the server", check=_root_path
    )
    ssl_keyfile: str | None = flag(None, "TLS private key, PEM; needs --ssl-certfile", check=_not_empty)
    ssl_certfile: str | None = flag(None, "TLS certificate chain, PEM; needs --ssl-keyfile", check=_not_empty)
    ssl_ca_certs: str | None = flag(None, "CA certificates, PEM, that clients' certificates are checked against")
    ssl_keyfile_password: str | None = flag(None, "password of the TLS private key", secret=True)
    served_model_name: str | None = flag(
        None, "model name in requests and answers; the model path when unset", check=_served_name
    )
    strict_model_name: bool = flag(False, "answer 404 to a request for any other than the served model name")
    max_queued_requests: int | None = flag(
        None, "requests that may wait; beyond that new ones are refused with 503", check=at_least(1)
    )
    request_timeout: float | None = flag(
        None, "seconds a request may take, waiting included; then it ends with 503", check=at_least(0.001)
    )
    drain_timeout: float = flag(120.0, "seconds that running requests may take to end after SIGTERM", check=at_least(0))
    stream_interval: int = flag(1, "output tokens between two messages of a stream", check=at_least(1))
    incremental_streaming_output: bool = flag(False, "streams of /generate have only what is new, not all so far")
    stream_response_default_include_usage: bool = flag(
        False, "streams of the OpenAI routes end with usage, asked for or not"
    )
    enable_response_store: bool = flag(
        False, "keep responses of /v1/responses in memory, to retrieve, continue or make them in the background"
    )
    enable_streaming_session: bool = flag(
        False, "sessions may be opened with `streaming`: their turns follow one another without naming the last one"
    )
    enable_return_hidden_states: bool = flag(False, "let requests have the model's hidden states")
    enable_cache_report: bool = flag(False, "tell cached prompt tokens in usage.prompt_tokens_details")
    chat_template: str | None = flag(
        None,
        "Jinja file used in place of the model's chat template, or alpaca, chatml, gemma, llama-2, llama-3, vicuna",
    )
    default_chat_template_kwargs: str = flag(
        "{}",
        "JSON object of variables for the chat template, which a request's chat_template_kwargs overrule",
        parse=json_text,
        metavar="JSON",
    )
    reasoning_parser: str | None = flag(
        None,
        "format of the model's thinking, which is split from its answers; `auto` reads the chat template",
        choices=REASONING_PARSERS,
    )
    tool_call_parser: str | None = flag(
        None,
        "format of the model's tool calls, which become OpenAI's; `auto` reads the chat template",
        choices=TOOL_CALL_PARSERS,
    )
    sampling_defaults: str = flag(
        "model",
        "where unset sampling parameters of chats come from: generation_config.json or OpenAI's values",
        choices=("openai", "model"),
    )
    allow_auto_truncate: bool = flag(False, "cut a prompt that is too long in place of refusing it")
    weight_version: str = flag("default", "label of the loaded weights, returned in meta_info")
    disable_ui: bool = flag(False, "do not serve the page at /ui")
    tokenizer_worker_num: int | None = flag(
        None,
        "processes that tokenize prompts; 0: the server's own does; by the number of cores when unset",
        check=within(0, 64),
    )
    detokenizer_worker_num: int | None = flag(
        None,
        "processes that turn tokens into text; 0: the server's own does; by the number of cores when unset",
        check=_one_at_most,
    )
    skip_server_warmup: bool = flag(False, "do not send a first request to ourselves before saying ready")
    log_level: str = flag("info", "logging level", choices=("debug", "info", "warning", "error", "critical"))
    log_level_http: str | None = flag(
        None,
        "logging level of the HTTP server; that of --log-level when unset",
        choices=("debug", "info", "warning", "error", "critical"),
    )


@dataclass(frozen=True)
class RequestLogConfig:
    """What the logs of requests read."""

    log_requests: bool = flag(False, "log every request and its answer")
    log_requests_level: int = flag(
        2,
        "0: ids and counts; 1: sampling parameters too; 2: texts too, cut short; 3: whole texts",
        check=within(0, 3),
    )
    log_requests_format: str = flag("text", "lines for people or JSON lines", choices=("text", "json"))
    log_requests_target: tuple[str, ...] | None = flag(
        None, "`stdout`, or folders that get a file per server; the server's log when unset", many=True
    )
    uvicorn_access_log_exclude_prefixes: tuple[str, ...] = flag(
        (), "paths that begin like this are left out of the access log", many=True
    )


@dataclass(frozen=True)
class DeviceConfig:
    """What the scheduler process and the runner read."""

    device: str = flag("auto", "where the model runs", choices=("auto", "cpu", "cuda"))
    attention_backend: str | None = flag(
        None,
        "attention implementation; the best that fits when unset; `full` is that of encoders",
        parse=decode_backend,
        choices=(*DECODE_BACKENDS, *ENCODER_BACKENDS),
    )
    prefill_attention_backend: str | None = flag(
        None,
        "attention implementation of steps with prompt tokens, where another than for decoding is wanted",
        parse=prefill_backend,
        choices=PREFILL_BACKENDS,
    )
    decode_attention_backend: str | None = flag(
        None,
        "attention implementation of decoding rows, where another than for prompts is wanted",
        parse=decode_backend,
        choices=DECODE_BACKENDS,
    )
    cuda_graph_backend_decode: str | None = flag(
        None, "whether decode steps are captured as CUDA graphs", choices=("full", "disabled")
    )
    cuda_graph_max_bs_decode: int | None = flag(
        None, "largest decode step that is captured, in requests; up to all that may run when unset", check=at_least(1)
    )
    cuda_graph_bs_decode: tuple[int, ...] | None = flag(
        None, "the sizes of decode steps to capture, in requests", many=True, check=_sizes
    )
    cuda_graph_backend_prefill: str | None = flag(
        None,
        "whether steps with prompt tokens are captured as CUDA graphs of the pieces between attentions",
        choices=("breakable", "disabled"),
    )
    cuda_graph_max_bs_prefill: int | None = flag(
        None,
        "largest step with prompt tokens that is captured, in tokens; by the model's size when unset",
        check=at_least(1),
    )
    cuda_graph_bs_prefill: tuple[int, ...] | None = flag(
        None, "the sizes of steps with prompt tokens to capture, in tokens", many=True, check=_sizes
    )
    disable_decode_cuda_graph: bool = flag(False, "do not capture decode steps")
    disable_prefill_cuda_graph: bool = flag(False, "do not capture steps with prompt tokens")
    disable_cuda_graph: bool = flag(False, "capture nothing (deprecated spelling)")
    disable_cuda_graph_padding: bool = flag(
        False,
        "capture every size up to the largest in place of rounding up to the next captured one",
        idle_with="cuda_graph_bs_decode",
    )
    enable_deterministic_inference: bool = flag(
        False, "an answer is the same bits alone and in any batch, cached or not; costs speed on CUDA"
    )
    random_seed: int | None = flag(
        None, "seed of dummy weights and of requests that bring none; drawn at start when unset", check=at_least(0)
    )
    watchdog_timeout: float = flag(300.0, "seconds without progress after which the server ends", check=at_least(1))

    def __post_init__(self) -> None:
        """ConfigError for settings of graphs that contradict each other, or that do nothing."""
        refuse_idle(self)
        for phase, captured in (("decode", "full"), ("prefill", "breakable")):
            backend, most, sizes = f"cuda_graph_backend_{phase}", f"cuda_graph_max_bs_{phase}", f"cuda_graph_bs_{phase}"
            for off in ("disable_cuda_graph", f"disable_{phase}_cuda_graph"):
                if getattr(self, off) and getattr(self, backend) == captured:
                    raise ConfigError(f"{option_of(backend)} {captured} contradicts {option_of(off)}")
            listed, largest = getattr(self, sizes), getattr(self, most)
            if listed is not None and largest not in (None, max(listed)):
                raise ConfigError(f"{option_of(most)} {largest} contradicts {option_of(sizes)} up to {max(listed)}")


@dataclass(frozen=True)
class ConstraintConfig:
    """What decides how answers are constrained."""

    grammar_backend: str | None = flag(
        None,
        "what enforces structured output; the best that can enforce each grammar when unset; see docs/structured.md",
        choices=("auto", "xgrammar", "llguidance", "outlines", "none"),
    )
    constrained_json_max_whitespace_cnt: int | None = flag(
        None, "most white space characters in a row in constrained JSON; 16 when unset", check=within(1, 1000)
    )
    constrained_json_disable_any_whitespace: bool = flag(False, "constrained JSON has no white space")
    constrained_json_whitespace_pattern: str | None = flag(
        None, "regular expression of white space in constrained JSON, for llguidance and outlines", check=_not_empty
    )
    enable_custom_logit_processor: bool = flag(
        False, "let requests name a registered logit processor; code in a request is never run"
    )


@dataclass(frozen=True)
class ScheduleConfig:
    """What the scheduler reads."""

    max_running_requests: int | None = flag(None, "concurrent request limit", check=at_least(1))
    chunked_prefill_size: int | None = flag(None, "prompt tokens computed in one step; -1 turns chunking off")
    max_prefill_tokens: int = flag(
        16384, "prompt token cap of one step when chunking is off", parse=human_int, check=at_least(1)
    )
    schedule_policy: str = flag("fcfs", "order of the waiting queue; see docs/scheduling.md", choices=_POLICIES)
    schedule_conservativeness: float = flag(
        1.0, "scales how much future output is reserved at admission", check=within(0, 1000)
    )
    prefill_max_requests: int | None = flag(
        None, "most requests with prompt tokens in one step; no limit when unset", check=at_least(1)
    )
    prefill_decode_interval: int | None = flag(
        None, "rounds of decoding between two steps with prompt tokens; none when unset", check=at_least(0)
    )
    min_free_slots_delay: int | None = flag(
        None, "start waiting requests only when so many more may run; 1 when unset", check=at_least(1)
    )
    enable_prefill_delayer: bool = flag(False, "hold waiting requests back while others decode, to start more at once")
    prefill_delayer_max_delay_passes: int = flag(
        30, "most steps that the delayer holds", check=at_least(0), needs="enable_prefill_delayer"
    )
    prefill_delayer_token_usage_low_watermark: float | None = flag(
        None,
        "the delayer never holds while less than this share of the KV pool is used",
        check=within(0, 1),
        needs="enable_prefill_delayer",
    )
    prefill_delayer_queue_min_ratio: float | None = flag(
        None,
        "the delayer also holds while fewer wait than this share of those that run; never for that when unset",
        check=at_least(0),
        needs="enable_prefill_delayer",
    )
    prefill_delayer_max_delay_ms: float | None = flag(
        None,
        "milliseconds that the queue's length may hold; 5000 when unset",
        check=at_least(0),
        needs="prefill_delayer_queue_min_ratio",
    )
    enable_priority_scheduling: bool = flag(False, "start requests of higher `priority` first; needs fcfs or lof")
    default_priority_value: int | None = flag(
        None, "priority of requests that bring none; the lowest when unset", needs="enable_priority_scheduling"
    )
    schedule_low_priority_values_first: bool = flag(
        False, "smaller priority values are more urgent", needs="enable_priority_scheduling"
    )
    disable_priority_preemption: bool = flag(
        False, "urgent requests wait for room in place of making it", needs="enable_priority_scheduling"
    )
    priority_scheduling_preemption_threshold: int = flag(
        10,
        "a waiting request preempts running ones whose priority is lower by more than this",
        check=at_least(0),
        needs="enable_priority_scheduling",
        idle_with="disable_priority_preemption",
    )
    abort_on_priority_when_disabled: bool = flag(
        False, "refuse requests with a priority when priority scheduling is off"
    )
    retraction_policy: str = flag(
        "length",
        "who gives way when memory runs out: fewest outputs first, or lowest priority first",
        choices=("length", "priority"),
        needs="enable_priority_scheduling",
    )
    scheduler_recv_interval: int = flag(
        1,
        "look for new requests every so many decode steps, and after every step with prompt tokens",
        check=at_least(1),
    )
    disable_overlap_schedule: bool = flag(False, "run scheduling and forward strictly in turn (run-ahead depth 0)")
    decode_log_interval: int = flag(40, "decode steps between log lines and gauge updates", check=at_least(1))

    def __post_init__(self) -> None:
        """ConfigError for settings that contradict each other."""
        if self.enable_priority_scheduling and self.schedule_policy not in ("fcfs", "lof"):
            raise ConfigError(f"--enable-priority-scheduling needs fcfs or lof, not {self.schedule_policy}")
        refuse_idle(self)


@dataclass(frozen=True)
class CacheConfig:
    """What the KV cache reads."""

    page_size: int | None = flag(None, "tokens per KV page", check=within(1, 1024))
    max_total_tokens: int | None = flag(None, "force the KV pool's size in tokens", parse=human_int, check=at_least(1))
    mem_fraction_static: float | None = flag(
        None,
        "share of device memory (on the CPU: of available RAM) for weights plus KV pool",
        check=strictly_between(0, 1),
    )
    kv_cache_dtype: str = flag(
        "auto",
        "precision of the KV pool; `auto` is that of computation",
        choices=("auto", "bf16", "bfloat16", "fp16", "float16", "fp32", "float32"),
    )
    disable_radix_cache: bool = flag(False, "turn prefix reuse off")
    radix_eviction_policy: str = flag(
        "lru",
        "which unused prefixes go first; see docs/scheduling.md",
        choices=_EVICTIONS,
        idle_with="disable_radix_cache",
    )
    radix_eviction_policy_config: Mapping[str, int] | None = flag(
        None,
        "JSON object of the eviction strategy's options",
        parse=whole_numbers,
        metavar="JSON",
        idle_with="disable_radix_cache",
    )
    kv_events_config: str | None = flag(
        None,
        "JSON object: tell subscribers what is cached; see docs/scheduling.md",
        parse=kv_events_text,
        metavar="JSON",
        idle_with="disable_radix_cache",
    )

    def __post_init__(self) -> None:
        """ConfigError for what does nothing."""
        refuse_idle(self)


@dataclass(frozen=True)
class ObserveConfig:
    """What metrics read."""

    enable_metrics: bool = flag(False, "serve Prometheus metrics under /metrics")
    bucket_time_to_first_token: tuple[float, ...] | None = flag(
        None, f"time to first token: {_BUCKETS}", many=True, check=increasing
    )
    bucket_inter_token_latency: tuple[float, ...] | None = flag(
        None, f"time between tokens: {_BUCKETS}", many=True, check=increasing
    )
    bucket_e2e_request_latency: tuple[float, ...] | None = flag(
        None, f"time of a whole request: {_BUCKETS}", many=True, check=increasing
    )
    prompt_tokens_buckets: tuple[str, ...] | None = flag(
        None, f"prompt lengths: {_TOKEN_RULE}", many=True, metavar="WORD"
    )
    generation_tokens_buckets: tuple[str, ...] | None = flag(
        None, f"output lengths: {_TOKEN_RULE}", many=True, metavar="WORD"
    )
    extra_metric_labels: Mapping[str, str] | None = flag(
        None, "JSON object of labels put on every metric", parse=string_labels, metavar="JSON"
    )
    export_metrics_to_file: bool = flag(
        False, "write a JSON line with times and counts for every request that ends", needs="export_metrics_to_file_dir"
    )
    export_metrics_to_file_dir: str | None = flag(None, "folder for those lines, a file per hour", check=_not_empty)
    enable_request_time_stats_logging: bool = flag(False, "log the times of every request that ends")
    enable_trace: bool = flag(False, "send OpenTelemetry traces: a span per request and per stage")
    trace_modules: str = flag("request", "what is traced", choices=("request",))
    otlp_traces_endpoint: str = flag(
        "localhost:4317",
        "collector of traces: host:port for gRPC, or an http:// address",
        check=_not_empty,
        needs="enable_trace",
    )
    otlp_service_name: str | None = flag(
        None, "service name on traces; `radixlm` when unset", check=_not_empty, needs="enable_trace"
    )

    def __post_init__(self) -> None:
        """ConfigError for what does nothing."""
        refuse_idle(self)


@dataclass(frozen=True)
class Config:
    """Everything a server or an Engine was asked for. Components take one of the groups, never this."""

    model: ModelConfig = field(metadata={"title": "Model"})
    server: ServerConfig = field(default_factory=ServerConfig, metadata={"title": "Server"})
    requests: RequestLogConfig = field(default_factory=RequestLogConfig, metadata={"title": "Request logs"})
    device: DeviceConfig = field(default_factory=DeviceConfig, metadata={"title": "Device"})
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig, metadata={"title": "Scheduling"})
    cache: CacheConfig = field(default_factory=CacheConfig, metadata={"title": "KV cache"})
    constraints: ConstraintConfig = field(default_factory=ConstraintConfig, metadata={"title": "Structured output"})
    observe: ObserveConfig = field(default_factory=ObserveConfig, metadata={"title": "Metrics"})

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> "Config":
        """A configuration from SGLang's field names in snake case (`model_path`, `page_size` ...) or their aliases.

        ConfigError when a name is unknown or given twice, a flag is not available yet or is refused (unless its value
        is the default), a value is bad, or `model_path` is missing.
        """
        known = fields_by_name()
        complaints: list[str] = []
        grouped: dict[str, dict[str, Any]] = {name: {} for name in group_types()}
        for given, value in values.items():
            name = canonical_name(given)
            if name not in known:
                complaints += unsupported(name, value)
            elif name in grouped[known[name].group]:
                complaints.append(f"{known[name].option} is given twice")
            else:
                grouped[known[name].group][name] = known[name].accept(value)
        if complaints:
            raise ConfigError("; ".join(complaints))
        missing = [item.option for item in known.values() if item.required and item.name not in grouped[item.group]]
        if missing:
            raise ConfigError(f"{missing[0]} is required")
        return cls(**{name: group(**grouped[name]) for name, group in group_types().items()})

    def flat(self) -> dict[str, Any]:
        """Every flag's value by its flat name."""
        return {item.name: getattr(getattr(self, item.group), item.name) for item in fields_by_name().values()}

    def shown(self) -> dict[str, Any]:
        """`flat()` for eyes, logs and info routes: the values of secret flags are hidden."""
        known = fields_by_name()
        return {
            name: _HIDDEN if known[name].flag.secret and value is not None else value
            for name, value in self.flat().items()
        }

    def replace(self, **changes: Any) -> "Config":
        """A copy in which the named flags have other values, checked as in `from_flat`."""
        return Config.from_flat({**self.flat(), **changes})

    def to_json(self) -> str:
        """The flat view as JSON, secrets included; the inverse of `from_json`."""
        return json.dumps(self.flat())

    @classmethod
    def from_json(cls, text: str) -> "Config":
        return cls.from_flat(json.loads(text))


@cache
def group_types() -> dict[str, type]:
    """The groups by the attribute that holds them."""
    return {item.name: item.type for item in dataclasses.fields(Config) if isinstance(item.type, type)}


@cache
def sections() -> dict[str, list[FlagField]]:
    """The flags that work, by the title of their group: the sections of help and docs."""
    return {
        item.metadata["title"]: [known for known in fields_by_name().values() if known.group == item.name]
        for item in dataclasses.fields(Config)
    }


@cache
def fields_by_name() -> dict[str, FlagField]:
    """Every flag that works, by its flat name."""
    return {item.name: item for name, group in group_types().items() for item in flags_of(name, group)}


def canonical_name(name: str) -> str:
    """The flat name behind any spelling: `tp-size`, `tensor_parallel_size` and `--tp-size` are `tp_size`.

    A name that nobody knows comes back in snake case.
    """
    plain = name.lstrip("-").replace("_", "-")
    row = find_row("--" + plain)
    return row.name if row is not None else plain.replace("-", "_")

"""The benchmark's command line under SGLang's names and defaults. Knows no server and starts nothing."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radixlm.base.client_key import KEY_HELP, client_key
from radixlm.base.errors import ConfigError
from radixlm.benchmark.backends import BACKENDS
from radixlm.benchmark.datasets.spec import CHAT_DATASETS, DatasetSpec
from radixlm.benchmark.http1 import HttpClient, target_of
from radixlm.config.commandline import Program
from radixlm.config.flags import at_least, flag, http_url, json_object, writable


def _above_one(value: float) -> str | None:
    return None if value > 1 else f"must be above 1, not {value:g}"


def _header(word: str) -> str:
    name, equals, _ = word.partition("=")
    if not equals or not name:
        raise ValueError(f"{word!r} is not NAME=VALUE")
    return word


@dataclass(frozen=True)
class TargetOptions:
    """Which server is measured, and how it is addressed."""

    backend: str = flag("sglang", "the API to speak", choices=tuple(BACKENDS))
    base_url: str | None = flag(None, "the server's URL, instead of host and port", parse=http_url)
    host: str = flag("0.0.0.0", "the server's address")
    port: int | None = flag(None, "the server's port (by backend: 30000, vllm 8000)")
    ready_check_timeout_sec: float = flag(60.0, "wait this long for the server to answer; 0 does not ask")
    model: str | None = flag(None, "model name (the first of /v1/models)")
    served_model_name: str | None = flag(None, "model name sent in requests (the model)")
    tokenizer: str | None = flag(None, "folder, .gguf file, hub id or demo (what the server's /model_info names)")
    api_key: str | None = flag(None, KEY_HELP, secret=True)
    header: tuple[str, ...] = flag((), "headers for every request", parse=_header, metavar="NAME=VALUE", many=True)


@dataclass(frozen=True)
class LoadOptions:
    """How the load is sent."""

    request_rate: float = flag(float("inf"), "requests per second, a Poisson process; inf sends all at once")
    max_concurrency: int | None = flag(None, "most requests in flight", check=at_least(1))
    client_processes: int | None = flag(None, "client processes (1 up to 4 cores)", check=at_least(1))
    warmup_requests: int = flag(1, "requests sent before the measured ones", check=at_least(0))
    flush_cache: bool = flag(False, "empty the server's prefix cache after the warm-up")
    flush_cache_timeout: float = flag(60.0, "seconds the server may take to become idle for that", check=at_least(0))
    seed: int = flag(42, "seed of dataset and arrivals", check=at_least(0))
    disable_stream: bool = flag(False, "ask for whole answers: TTFT, TPOT and ITL are then not measured")
    disable_ignore_eos: bool = flag(False, "let answers end early")
    temperature: float = flag(0.0, "sampling temperature", check=at_least(0))
    top_p: float = flag(1.0, "nucleus sampling")
    use_trace_timestamps: bool = flag(False, "send at the dataset's own times, which mooncake always does")
    fake_prefill: bool = flag(False, "pretend a prefill server has done the prompts (tests of a decode server)")
    extra_request_body: Mapping[str, Any] | None = flag(
        None, "JSON object merged into every request body", parse=json_object, metavar="JSON"
    )


@dataclass(frozen=True)
class OutputOptions:
    """Where results go."""

    output_file: str | None = flag(
        None, "JSONL file to append one line to (named by backend, date and sizes)", check=writable
    )
    output_details: bool = flag(False, "put every request's lengths, times, text and error into the line")
    tag: str | None = flag(None, "a word stored in the line")
    cache_report: bool = flag(False, "print and store cache hits in detail")
    disable_tqdm: bool = flag(False, "no progress on the terminal")
    print_requests: bool = flag(False, "print every prompt and answer, in the dataset's order")
    plot_throughput: bool = flag(False, "print tokens of each second as bars")


@dataclass(frozen=True)
class LogprobOptions:
    """Log probabilities, which only /generate is asked for: their cost is what is measured."""

    return_logprob: bool = flag(False, "ask for log probabilities")
    top_logprobs_num: int = flag(0, "alternatives to tell at every position", check=at_least(0))
    token_ids_logprob: tuple[int, ...] | None = flag(None, "ids to tell at every position", many=True)
    logprob_start_len: int = flag(-1, "tell those of the prompt from this position on; -1: outputs only")


@dataclass(frozen=True)
class LoraOptions:
    """Adapters that requests name."""

    lora_name: tuple[str, ...] | None = flag(None, "adapters that requests use", many=True)
    lora_request_distribution: str = flag(
        "uniform",
        "which adapter a request uses: drawn evenly, in turn, or drawn with weight alpha^-i",
        choices=("uniform", "distinct", "skewed"),
    )
    lora_zipf_alpha: float = flag(1.5, "alpha of the skewed distribution", check=_above_one)


@dataclass(frozen=True)
class ProfileOptions:
    """The server's own profiler, started before the measured requests and stopped after them."""

    profile: bool = flag(False, "have the server write a profile: it slows the run, so do not quote its numbers")
    profile_activities: tuple[str, ...] = flag(
        ("CPU", "GPU"), "what to record", many=True, choices=("CPU", "GPU", "MEM", "CUDA_PROFILER", "XPU")
    )
    profile_start_step: int | None = flag(None, "step to start at", check=at_least(0))
    profile_steps: int | None = flag(None, "steps to record; to the end of the run when unset", check=at_least(1))
    profile_by_stage: bool = flag(False, "a profile of prefill and one of decode")
    profile_stages: tuple[str, ...] | None = flag(None, "the stages to record", many=True)
    profile_output_dir: str | None = flag(None, "folder on the server")
    profile_prefix: str | None = flag(None, "beginning of the files' names")


@dataclass(frozen=True)
class Options:
    """The whole command line."""

    target: TargetOptions
    load: LoadOptions
    dataset: DatasetSpec
    output: OutputOptions
    logprobs: LogprobOptions = field(default_factory=LogprobOptions)
    lora: LoraOptions = field(default_factory=LoraOptions)
    profile: ProfileOptions = field(default_factory=ProfileOptions)


_REFUSED = {
    "--rust-client": "there is one client; --client-processes gives it more cores",
    "--rust-worker-threads": "there is one client; --client-processes gives it more cores",
    "--pd-separated": "profile each server of a disaggregated pair by its own /start_profile",
    "--mooncake-workload": "nothing is downloaded: give the trace's file with --dataset-path",
    "--gsp-fast-prepare": "preparation is always fast",
    "--return-routed-experts": "routed experts are not reported",
    "--image-count": "images are not sent",
    "--random-image-count": "images are not sent",
}
SERVING = Program(
    "serving",
    "Measure a running server under load.",
    {
        "target": TargetOptions,
        "load": LoadOptions,
        "dataset": DatasetSpec,
        "output": OutputOptions,
        "logprobs": LogprobOptions,
        "lora": LoraOptions,
        "profile": ProfileOptions,
    },
    _REFUSED,
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the serving benchmark."""
    return SERVING.parser()


def parse(argv: Sequence[str] | None = None) -> Options:
    """The options of a command line. ConfigError names the flag at fault; SystemExit 0 after --help."""
    options = Options(**SERVING.read(argv))
    _check(options)
    return options


def _check(options: Options) -> None:
    """What no single flag can know."""
    name, dataset = options.target.backend, options.dataset
    backend = BACKENDS[name]
    if not options.load.request_rate > 0:
        raise ConfigError(f"--request-rate must be positive, not {options.load.request_rate:g}")
    if dataset.tokenize_prompt and not backend.takes_ids:
        raise ConfigError(f"--tokenize-prompt: backend {name} takes text, not token ids")
    if dataset.vocab_size is not None and not dataset.tokenize_prompt:
        raise ConfigError("--vocab-size needs --tokenize-prompt: without a tokenizer there is no text to send")
    if dataset.vocab_size is not None and options.target.tokenizer is not None:
        raise ConfigError("--vocab-size and --tokenizer exclude each other")
    if dataset.apply_chat_template and (backend.chat or dataset.tokenize_prompt):
        raise ConfigError("--apply-chat-template: only for prompts sent as text, and not where the server applies it")
    if options.load.use_trace_timestamps and dataset.dataset_name != "mooncake":
        raise ConfigError("--use-trace-timestamps: only the dataset mooncake has times")
    if dataset.dataset_name in CHAT_DATASETS and not backend.chat:
        raise ConfigError(f"--dataset-name {dataset.dataset_name} holds conversations: it needs a chat backend")
    native_only = {
        "--return-logprob": options.logprobs.return_logprob,
        "--fake-prefill": options.load.fake_prefill,
    }
    for option, given in native_only.items():
        if given and not backend.native:
            raise ConfigError(f"{option} needs the backend sglang, not {name}")


def base_url(options: TargetOptions) -> str:
    """The server's URL."""
    return options.base_url or f"http://{options.host}:{options.port or BACKENDS[options.backend].default_port}"


def headers(options: TargetOptions) -> dict[str, str]:
    """The headers of every request: the key as a bearer token or API_KEY as it is, then --header."""
    found: dict[str, str] = {}
    if key := client_key(options.api_key):
        found["Authorization"] = f"Bearer {key}"
    elif key := os.environ.get("API_KEY"):
        found["Authorization"] = key
    for word in options.header:
        name, _, value = word.partition("=")
        found[name] = value
    return found


def client_at(url: str, api_key: str | None) -> HttpClient:
    """A client for the server at `url`, not yet connected, with the headers of the key and the environment."""
    return HttpClient(target_of(url, headers(TargetOptions(api_key=api_key))))


def client_processes(options: LoadOptions, num_requests: int) -> int:
    """How many client processes to use: as asked, else one per four cores up to four; never more than can be busy."""
    wanted = options.client_processes
    if wanted is None:
        wanted = min(4, max(1, (os.cpu_count() or 1) // 4))
    return max(1, min(wanted, num_requests, options.max_concurrency or wanted))

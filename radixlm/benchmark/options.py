"""The benchmark's command line under SGLang's names and defaults. Knows no server and starts nothing."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixlm.base.errors import ConfigError
from radixlm.benchmark.backends import BACKENDS
from radixlm.benchmark.datasets.spec import DatasetSpec
from radixlm.config.flags import FlagField, at_least, flag, flags_of, json_object

PROGRAM = "python -m radixlm.benchmark.serving"


def _header(word: str) -> str:
    name, equals, _ = word.partition("=")
    if not equals or not name:
        raise ValueError(f"{word!r} is not NAME=VALUE")
    return word


@dataclass(frozen=True)
class TargetOptions:
    """Which server is measured, and how it is addressed."""

    backend: str = flag("sglang", "the API to speak", choices=tuple(BACKENDS))
    base_url: str | None = flag(None, "the server's URL, instead of host and port")
    host: str = flag("0.0.0.0", "the server's address")
    port: int | None = flag(None, "the server's port (by backend: 30000, vllm 8000)")
    ready_check_timeout_sec: float = flag(60.0, "wait this long for the server to answer; 0 does not ask")
    model: str | None = flag(None, "model name (the first of /v1/models)")
    served_model_name: str | None = flag(None, "model name sent in requests (the model)")
    tokenizer: str | None = flag(None, "folder, .gguf file, hub id or demo (what the server's /model_info names)")
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
    extra_request_body: Mapping[str, Any] | None = flag(
        None, "JSON object merged into every request body", parse=json_object, metavar="JSON"
    )


@dataclass(frozen=True)
class OutputOptions:
    """Where results go."""

    output_file: str | None = flag(None, "JSONL file to append one line to (named by backend, date and sizes)")
    output_details: bool = flag(False, "put every request's lengths, times, text and error into the line")
    tag: str | None = flag(None, "a word stored in the line")
    cache_report: bool = flag(False, "print and store cache hits in detail")
    disable_tqdm: bool = flag(False, "no progress on the terminal")


@dataclass(frozen=True)
class Options:
    """The whole command line."""

    target: TargetOptions
    load: LoadOptions
    dataset: DatasetSpec
    output: OutputOptions


_GROUPS: dict[str, type] = {
    "target": TargetOptions,
    "load": LoadOptions,
    "dataset": DatasetSpec,
    "output": OutputOptions,
}


def _add(group: "argparse._ArgumentGroup", item: FlagField) -> None:
    if item.kind == "switch":
        group.add_argument(item.option, dest=item.name, action="store_const", const=(), help=item.flag.help)
        return
    shown = item.default not in (None, (), "", float("inf"))
    choices = "{" + ",".join(item.flag.choices) + "}" if item.flag.choices else None
    group.add_argument(
        item.option,
        dest=item.name,
        nargs="+" if item.kind == "list" else 1,
        metavar=choices or item.flag.metavar or item.base.__name__.upper(),
        help=item.flag.help + (f" ({item.default})" if shown else ""),
    )


def build_parser() -> argparse.ArgumentParser:
    """The parser; an option that is not listed in its help is refused."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [options]",
        description="Measure a server under load.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for name, group in _GROUPS.items():
        section = parser.add_argument_group(name)
        for item in flags_of(name, group):
            _add(section, item)
    return parser


def parse(argv: Sequence[str] | None = None) -> Options:
    """The options of a command line. ConfigError names the flag at fault; SystemExit for --help or an unknown flag."""
    words = vars(build_parser().parse_args(argv))
    groups = {
        name: group(**{item.name: item.read(words[item.name]) for item in flags_of(name, group) if item.name in words})
        for name, group in _GROUPS.items()
    }
    options = Options(**groups)
    _check(options)
    return options


def _check(options: Options) -> None:
    """What no single flag can know."""
    backend, dataset = options.target.backend, options.dataset
    if not options.load.request_rate > 0:
        raise ConfigError(f"--request-rate must be positive, not {options.load.request_rate:g}")
    if dataset.tokenize_prompt and not BACKENDS[backend].takes_ids:
        raise ConfigError(f"--tokenize-prompt: backend {backend} sends messages, which cannot be token ids")
    if dataset.vocab_size is not None and not dataset.tokenize_prompt:
        raise ConfigError("--vocab-size needs --tokenize-prompt: without a tokenizer there is no text to send")
    if dataset.vocab_size is not None and options.target.tokenizer is not None:
        raise ConfigError("--vocab-size and --tokenizer exclude each other")


def base_url(options: TargetOptions) -> str:
    """The server's URL."""
    return options.base_url or f"http://{options.host}:{options.port or BACKENDS[options.backend].default_port}"


def headers(options: TargetOptions) -> dict[str, str]:
    """The headers of every request: OPENAI_API_KEY as a bearer token or API_KEY as it is, then --header."""
    found: dict[str, str] = {}
    if key := os.environ.get("OPENAI_API_KEY"):
        found["Authorization"] = f"Bearer {key}"
    elif key := os.environ.get("API_KEY"):
        found["Authorization"] = key
    for word in options.header:
        name, _, value = word.partition("=")
        found[name] = value
    return found


def client_processes(options: LoadOptions, num_requests: int) -> int:
    """How many client processes to use: as asked, else one per four cores up to four; never more than can be busy."""
    wanted = options.client_processes
    if wanted is None:
        wanted = min(4, max(1, (os.cpu_count() or 1) // 4))
    return max(1, min(wanted, num_requests, options.max_concurrency or wanted))

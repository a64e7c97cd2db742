"""`radixlm size MODEL`: what fits on a machine, without the machine and without the weights."""

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radixlm.base.errors import CapacityError, ConfigError, ModelError, RadixError
from radixlm.config.capacity import GIB
from radixlm.config.cli import read_serve
from radixlm.config.facts import HardwareFacts, probe_host
from radixlm.config.flags import human_int
from radixlm.config.groups import Config
from radixlm.loader.card import load_card
from radixlm.loader.demo import DEMO
from radixlm.loader.source import ModelSource, resolve
from radixlm.tools.driver import driver_gpus
from radixlm.tools.gpus import GPUS, gpu_named, gpu_of_size
from radixlm.tools.sizing import Sizing, advise, size

HUB_FILES = ["config.json", "generation_config.json"]
HUB_TIMEOUT_S = 10
LEAST_MEMORY_BYTES = 2**20


def build_parser() -> argparse.ArgumentParser:
    """What is size's own; all else goes to the parser of `radixlm serve`."""
    parser = argparse.ArgumentParser(
        prog="radixlm size",
        usage="radixlm size MODEL [options] [options of radixlm serve]",
        description="Say what of a model's traffic fits on a machine. Needs no GPU and no weights.",
        allow_abbrev=False,
    )
    parser.add_argument("--gpu", help=f"one of {', '.join(GPUS)}; this machine's when neither is given")
    parser.add_argument("--memory", help="memory of another GPU, such as 24G; with --device cpu free RAM")
    parser.add_argument("--context", dest="context", help="the same as --context-length")
    parser.add_argument(
        "--request-tokens", type=int, nargs="+", default=[1024, 4096, 16_384], help="lengths of requests to count"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object in place of text")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Exit 1: the model does not fit or its server would not start; 2: the command line is wrong."""
    own, rest = build_parser().parse_known_args(argv)
    words = [*rest, "--context-length", own.context] if own.context is not None else rest
    try:
        if min(own.request_tokens) < 1:
            raise ConfigError("--request-tokens must be at least 1")
        config = read_serve(words)
        facts = machine(own.gpu, own.memory, config.device.device)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        sizing = _sized(config, facts)
    except RadixError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(as_json(sizing, own.request_tokens)) if own.json else as_text(sizing, config, facts, own, words))
    return 0


def _sized(config: Config, facts: HardwareFacts) -> Sizing:
    card = load_card(find(config), json.loads(config.model.json_model_override_args))
    try:
        return size(config, facts, card)
    except CapacityError as error:
        where = facts.gpu.name if facts.gpu is not None else "this machine's CPU"
        raise CapacityError(f"{config.model.model_path} on {where}: {error}") from None


def find(config: Config) -> ModelSource:
    """The model's configuration: on disk, or of a hub id only the few files that are read here."""
    name = config.model.model_path
    if name == DEMO or name.endswith(".gguf") or Path(name).expanduser().exists():
        return resolve(name)
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            name,
            revision=config.model.revision,
            cache_dir=config.model.download_dir,
            allow_patterns=HUB_FILES,
            etag_timeout=HUB_TIMEOUT_S,
        )
    except Exception as error:  # of the hub, of the operating system, or of the client's transport library
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{name} is no folder or file here, and the hub does not give it: {first[0]}") from None
    return ModelSource(name, Path(folder), "folder")


def machine(gpu: str | None, memory: str | None, device: str) -> HardwareFacts:
    """The machine that is meant; this one when nothing is named."""
    if gpu is not None and memory is not None:
        raise ConfigError("--gpu and --memory exclude each other")
    host = probe_host()
    if device == "cpu":
        if gpu is not None:
            raise ConfigError("--gpu and --device cpu exclude each other")
        return host if memory is None else dataclasses.replace(host, available_bytes=memory_bytes(memory))
    if gpu is not None:
        return dataclasses.replace(host, gpu=gpu_named(gpu))
    if memory is not None:
        return dataclasses.replace(host, gpu=gpu_of_size(memory_bytes(memory)))
    found = driver_gpus()
    return host if isinstance(found, str) else dataclasses.replace(host, gpu=found[0].facts(host))


def memory_bytes(word: str) -> int:
    """`24G`, `24GB`, `24GiB` and `24Gi` are all 24 GiB: what GPUs are sold by."""
    plain = word.removesuffix("B").removesuffix("b").removesuffix("i")
    try:
        size_bytes = human_int(f"{plain}i" if plain.endswith(("k", "M", "G", "T")) else plain)
    except ValueError as error:
        raise ConfigError(f"--memory: {error}") from None
    if size_bytes < LEAST_MEMORY_BYTES:
        raise ConfigError(f"--memory {word}: {size_bytes:,} bytes hold no model; give a unit, such as 24G")
    return size_bytes


def as_json(sizing: Sizing, request_tokens: Sequence[int]) -> dict[str, Any]:
    """The numbers, by the names that /server_info has where it has them."""
    return {
        "weights_bytes": sizing.weights_bytes,
        "kv_bytes_per_token": sizing.kv_bytes_per_token,
        "kv_cache_bytes": sizing.pool.bytes,
        "max_total_num_tokens": sizing.pool.tokens,
        "page_size": sizing.resolved.page_size,
        "context_len": sizing.resolved.context_len,
        "max_running_requests": sizing.running,
        "chunked_prefill_size": sizing.resolved.config.schedule.chunked_prefill_size,
        "mem_fraction_static": sizing.resolved.config.cache.mem_fraction_static,
        "dtype": sizing.resolved.config.model.dtype,
        "available_bytes": sizing.available_bytes,
        "users": {str(tokens): sizing.users(tokens) for tokens in request_tokens},
    }


def as_text(sizing: Sizing, config: Config, facts: HardwareFacts, own: argparse.Namespace, words: Sequence[str]) -> str:
    """For people: the server's own lines, who fits, and what to set. `words` are those given of radixlm serve."""
    where = facts.gpu.name if sizing.resolved.on_cuda and facts.gpu is not None else f"CPU, {facts.cores} cores"
    lines = [
        f"{config.model.model_path} on {where}, {sizing.available_bytes / GIB:.1f} GiB free",
        "",
        f"weights: {sizing.card.num_parameters / 1e9:.2f} billion, {sizing.weights_bytes / GIB:.2f} GiB "
        f"in {sizing.resolved.config.model.dtype}",
        f"KV cache: {sizing.kv_bytes_per_token:,} bytes per token "
        f"({GIB // max(sizing.kv_bytes_per_token, 1):,} tokens per GiB)",
        f"KV pool: {sizing.pool.tokens:,} tokens, {sizing.pool.bytes / GIB:.2f} GiB",
        "",
        "requests that fit at once, prompt and output together:",
        *(f"  {tokens:>9,} tokens: {_users(sizing, tokens)}" for tokens in own.request_tokens),
        "",
        "the server would say at its start:",
        *(f"  {line}" for line in sizing.report()),
    ]
    tokens = own.request_tokens[0]
    advice = advise(sizing, config, facts, tokens)
    if advice.flags:
        lines += ["", f"defaults that assume another machine, for requests of {tokens:,} tokens:"]
        lines += [f"  {flag}: {reason}" for flag, reason in advice.flags]
        then = f"with these the pool has {advice.then.pool.tokens:,} tokens, "
        lines.append(f"{then}and {advice.then.users(tokens):,} such requests run at once")
    if sizing.resolved.on_cuda:
        lines += ["", "note: a server also measures its largest step and its graphs; where these need more than the"]
        lines += ["share leaves, its pool is smaller than this"]
    lines += ["", " ".join(["radixlm serve", shlex.join(words), *(flag for flag, _ in advice.flags)])]
    return "\n".join(lines)


def _users(sizing: Sizing, tokens: int) -> str:
    if tokens > sizing.resolved.context_len:
        return f"none: longer than the context of {sizing.resolved.context_len:,}"
    return f"{sizing.users(tokens):,}"


if __name__ == "__main__":
    sys.exit(main())

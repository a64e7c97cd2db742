"""`radixlm bench offline`: throughput of the Python Engine, without HTTP: all prompts given in one call."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from radixlm.api.engine import Engine
from radixlm.base.errors import ConfigError
from radixlm.benchmark.datasets import spec as datasets
from radixlm.benchmark.datasets.spec import CHAT_DATASETS, DatasetSpec
from radixlm.benchmark.outcome import Request
from radixlm.benchmark.serving import load_vocabulary
from radixlm.benchmark.tokens import Vocabulary
from radixlm.config.cli import read_serve
from radixlm.config.commandline import Program, append_line, command
from radixlm.config.flags import at_least, flag, json_object, writable

WARMUP = DatasetSpec(
    "random-ids",
    num_prompts=16,
    random_input_len=256,
    random_output_len=16,
    random_range_ratio=1.0,
    tokenize_prompt=True,
)


@dataclass(frozen=True)
class RunOptions:
    """How it is run."""

    result_filename: str = flag("", "JSONL file to append a line to", check=writable)
    seed: int = flag(42, "seed of the dataset", check=at_least(0))
    disable_ignore_eos: bool = flag(False, "let answers end early")
    skip_warmup: bool = flag(False, "measure from the first request on")
    extra_request_body: Mapping[str, Any] | None = flag(
        None, "JSON object merged into the sampling parameters", parse=json_object, metavar="JSON"
    )


PROGRAM = Program(
    "offline",
    "Measure the Python Engine. Further options are those of radixlm serve.",
    {"run": RunOptions, "dataset": DatasetSpec},
    {"--backend": "there is one: the Engine", "--profile": "radixlm profile does that"},
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    found, rest = PROGRAM.read_known(argv, "MODEL [options of radixlm serve]")
    options, dataset = found["run"], found["dataset"]
    if dataset.dataset_name in CHAT_DATASETS or dataset.gsp_num_turns > 1 or dataset.mooncake_num_rounds > 1:
        raise ConfigError("conversations are measured with radixlm bench serving")
    config = read_serve(rest)
    vocabulary = load_vocabulary(config.model.tokenizer_path or config.model.model_path)
    requests = datasets.build(dataset, vocabulary, options.seed)
    with Engine(**config.flat()) as engine:
        if not options.skip_warmup:
            generate(engine, warm_up_requests(dataset, requests, vocabulary), options)
        line = measure(engine, requests, options)
    print(banner(line))
    if options.result_filename:
        append_line(options.result_filename, msgspec.json.encode(line) + b"\n")
    return 0


def warm_up_requests(dataset: DatasetSpec, requests: Sequence[Request], vocabulary: Vocabulary) -> list[Request]:
    """A few requests that share nothing with the measured ones, no longer than the longest of those."""
    longest = max(request.prompt_tokens for request in requests)
    short = replace(WARMUP, random_input_len=min(longest, WARMUP.random_input_len))
    seed = int(np.random.default_rng().integers(2**31))
    return datasets.build(short, vocabulary, seed)


def generate(engine: Engine, requests: Sequence[Request], options: RunOptions) -> list[dict[str, Any]]:
    """All answers, in order."""
    common = {"temperature": 0.0, "ignore_eos": not options.disable_ignore_eos, **(options.extra_request_body or {})}
    sampling = [{**common, "max_new_tokens": request.output_tokens} for request in requests]
    prompts: list[Any] = [request.prompt for request in requests]
    if isinstance(prompts[0], str):
        answers: list[dict[str, Any]] = engine.generate(prompts, sampling)
    else:
        answers = engine.generate(None, sampling, prompts)
    return answers


def measure(engine: Engine, requests: Sequence[Request], options: RunOptions) -> dict[str, Any]:
    """One timed call; SGLang's keys, then how much of the input was cached."""
    began = time.perf_counter()
    answers = generate(engine, requests, options)
    latency_s = time.perf_counter() - began
    metas = [answer["meta_info"] for answer in answers]
    input_tokens = sum(meta["prompt_tokens"] for meta in metas)
    output_tokens = sum(meta["completion_tokens"] for meta in metas)
    states = engine.get_server_info().get("internal_states") or [{}]
    return {
        "backend": "engine",
        "successful_requests": len(answers),
        "total_latency": latency_s,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": len(answers) / latency_s,
        "input_throughput": input_tokens / latency_s,
        "output_throughput": output_tokens / latency_s,
        "total_throughput": (input_tokens + output_tokens) / latency_s,
        "last_gen_throughput": states[0].get("gen_throughput") or None,  # 0: too few steps for one to be known
        "cached_tokens": sum(meta.get("cached_tokens") or 0 for meta in metas),
        "requested_output_tokens": sum(request.output_tokens for request in requests),
    }


def banner(line: dict[str, Any]) -> str:
    """The result as text; what is not known is left out."""
    title = " Offline Throughput Benchmark Result "
    rows = [f"{title:=^50}"]
    for key, value in line.items():
        if value is None:
            continue
        shown = f"{value:.2f}" if isinstance(value, float) else str(value)
        rows.append(f"{key.replace('_', ' ').capitalize() + ':':<40} {shown}")
    return "\n".join([*rows, "=" * 50])


if __name__ == "__main__":
    sys.exit(main())

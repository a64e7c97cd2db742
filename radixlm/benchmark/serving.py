"""`radixlm bench serving`: measures a running server. Puts the pieces in order: ask, prepare, warm up,
flush, measure, report.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import numpy as np

from radixlm.base.client_key import REFUSED, refusal
from radixlm.base.errors import ConfigError, RadixError
from radixlm.benchmark import options as cli
from radixlm.benchmark.backends import BACKENDS, BodySettings
from radixlm.benchmark.datasets import spec as datasets
from radixlm.benchmark.http1 import HttpClient, HttpFailure, Target, target_of
from radixlm.benchmark.load import Plan, Progress, arrivals_of
from radixlm.benchmark.metrics import summarize
from radixlm.benchmark.options import Options, ProfileOptions
from radixlm.benchmark.outcome import Outcome, Request
from radixlm.benchmark.report import (
    Run,
    banner,
    conversation_log,
    encode_line,
    output_file_name,
    record,
    throughput_bars,
    without_secrets,
)
from radixlm.benchmark.tokens import Codec, Vocabulary
from radixlm.benchmark.workers import measure, run_async
from radixlm.config.commandline import append_line, command

WARMUP_OUTPUT_TOKENS = 32
SETTLE_S = 1.0
QUESTION_TIMEOUT_S = 10.0
FLUSH_GRACE_S = 10.0
PROFILE_TIMEOUT_S = 300.0  # writing a profile takes its time
FAKE_PREFILL_HOST = "2.2.2.2"


async def run(options: Options) -> Run:
    """One benchmark run against a server that is up. RadixError, in one line, when it cannot be carried out."""
    target = target_of(cli.base_url(options.target), cli.headers(options.target))
    client = HttpClient(target)
    try:
        models = await wait_ready(client, options.target.ready_check_timeout_sec)
        options = await _with_model(client, options, models)
        vocabulary = await _vocabulary(client, options)
        requests = _requests(options, vocabulary)
        plan = _plan(options, target, requests)
        await _warm_up(plan, options.load.warmup_requests)
        if options.load.flush_cache:
            await _flush(client, options)
        if options.load.warmup_requests or options.load.flush_cache:
            await asyncio.sleep(SETTLE_S)
        processes = cli.client_processes(options.load, len(requests))
        async with profiling(client, options.profile):
            measured = await measure(plan, processes, _progress_printer(options, len(requests)))
        info = await _ask(client, "/server_info")
    finally:
        client.close()
    return Run(
        options=options,
        requests=requests,
        outcomes=measured.outcomes,
        metrics=summarize(requests, measured.outcomes, measured.start_s),
        client_cpu_percent=measured.cpu_percent,
        client_processes=processes,
        server_info=None if info is None else without_secrets(info),
        retokenized=_retokenize(vocabulary.codec, measured.outcomes),
    )


async def wait_ready(client: HttpClient, timeout_s: float) -> dict[str, Any] | None:
    """The answer of `/v1/models`, asked for every second until it comes; None if `timeout_s` is 0 and it does not.

    A wait is told on stderr.
    RadixError when it does not in that time, ConfigError at once from a server that refuses the key: waiting would not
    change its mind.
    """
    deadline = time.monotonic() + timeout_s
    told = False
    while True:
        answer = await _ask(client, "/v1/models", refused_ends=True)
        if answer is not None or timeout_s <= 0:
            return answer
        if time.monotonic() >= deadline:
            raise RadixError(f"no answer from {client.target.url}/v1/models within {timeout_s:g} s")
        if not told:
            print(f"waiting for {client.target.url}, {timeout_s:g} s at most", file=sys.stderr, flush=True)
            told = True
        await asyncio.sleep(1.0)


async def _ask(client: HttpClient, path: str, refused_ends: bool = False) -> dict[str, Any] | None:
    """The JSON object at `path`, None if there is none. `refused_ends`: a refused key is a ConfigError."""
    try:
        status, body = await client.fetch("GET", path, QUESTION_TIMEOUT_S)
        if refused_ends and status in REFUSED:
            raise ConfigError(refusal(client.target.url, status))
        answer = msgspec.json.decode(body) if status == 200 else None
    except (HttpFailure, msgspec.DecodeError):
        return None
    return answer if isinstance(answer, dict) else None


async def _with_model(client: HttpClient, options: Options, models: dict[str, Any] | None) -> Options:
    """`options` with the model's name, the server's first one unless the user gave one."""
    if options.target.model is not None:
        return options
    listed = (models or await _ask(client, "/v1/models") or {}).get("data")
    if not isinstance(listed, list) or not listed or not isinstance(listed[0].get("id"), str):
        raise ConfigError(f"{client.target.url}/v1/models names no model; give --model")
    return replace(options, target=replace(options.target, model=listed[0]["id"]))


async def _vocabulary(client: HttpClient, options: Options) -> Vocabulary:
    if options.dataset.vocab_size is not None:
        return Vocabulary.of_size(options.dataset.vocab_size)
    name = options.target.tokenizer
    if name is None:
        info = await _ask(client, "/model_info") or {}
        name = info.get("tokenizer_path") or info.get("model_path") or options.target.model
    return await asyncio.to_thread(load_vocabulary, str(name))


def load_vocabulary(name: str) -> Vocabulary:
    """The tokenizer and chat template of a folder, a .gguf file, a hub id or `demo`.

    Imported here: without a tokenizer most of it is not needed.
    """
    from radixlm.frontend.template import load_chat_template
    from radixlm.loader.source import resolve
    from radixlm.loader.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve(name))
    template = load_chat_template(tokenizer, None)
    return Vocabulary.of_codec(tokenizer, None if template is None else template.render)


def _requests(options: Options, vocabulary: Vocabulary) -> list[Request]:
    """The dataset, with what the backend and the adapters change in it."""
    requests = datasets.build(options.dataset, vocabulary, options.load.seed)
    backend, lora = BACKENDS[options.target.backend], options.lora
    if not backend.generates:
        requests = [msgspec.structs.replace(request, output_tokens=0) for request in requests]
    if lora.lora_name is None:
        return requests
    names = adapters(lora.lora_name, lora.lora_request_distribution, lora.lora_zipf_alpha, requests, options.load.seed)
    return [
        msgspec.structs.replace(request, extra={**request.extra, backend.lora_key: name})
        for request, name in zip(requests, names, strict=True)
    ]


def adapters(
    names: Sequence[str], distribution: str, alpha: float, requests: Sequence[Request], seed: int
) -> list[str]:
    """The adapter of each request, the same for all turns of a conversation."""
    rng = np.random.default_rng([seed, 2])
    weights = np.array([alpha**-i if distribution == "skewed" else 1.0 for i in range(len(names))])
    chosen: list[str] = []
    conversation = -1
    for request in requests:
        if request.follows:
            chosen.append(chosen[-1])
            continue
        conversation += 1
        place = conversation if distribution == "distinct" else int(rng.choice(len(names), p=weights / weights.sum()))
        chosen.append(names[place % len(names)])
    return chosen


def _extra(options: Options) -> dict[str, Any]:
    """What is merged into every body."""
    extra: dict[str, Any] = {}
    if options.load.fake_prefill:
        extra |= {"bootstrap_host": FAKE_PREFILL_HOST, "bootstrap_room": 0}
    asked = options.logprobs
    if asked.return_logprob:
        extra |= {"return_logprob": True, "logprob_start_len": asked.logprob_start_len}
        extra |= {"top_logprobs_num": asked.top_logprobs_num} if asked.top_logprobs_num else {}
        extra |= {"token_ids_logprob": list(asked.token_ids_logprob)} if asked.token_ids_logprob else {}
    return extra | dict(options.load.extra_request_body or {})


def _plan(options: Options, target: Target, requests: list[Request]) -> Plan:
    load = options.load
    body = BodySettings(
        model=options.target.served_model_name or options.target.model or "",
        stream=not load.disable_stream and BACKENDS[options.target.backend].generates,
        ignore_eos=not load.disable_ignore_eos,
        temperature=load.temperature,
        top_p=load.top_p,
        extra=_extra(options),
    )
    due_s = arrivals_of(requests, load.request_rate, load.seed)
    indices = list(range(len(requests)))
    return Plan(target, options.target.backend, body, requests, indices, due_s, load.max_concurrency)


async def _warm_up(plan: Plan, count: int) -> None:
    """Send the first request `count` times with a short output. RadixError if none succeeds."""
    if not count:
        return
    first = plan.requests[0]
    short = msgspec.structs.replace(first, output_tokens=min(first.output_tokens, WARMUP_OUTPUT_TOKENS))
    warm_up = msgspec.structs.replace(
        plan, requests=[short] * count, indices=list(range(count)), arrivals_s=[0.0] * count
    )
    outcomes = (await measure(warm_up, 1)).outcomes
    if all(outcome.error is not None for outcome in outcomes):
        raise RadixError(f"the warm-up failed: {outcomes[0].error}")


async def _flush(client: HttpClient, options: Options) -> None:
    timeout_s = options.load.flush_cache_timeout
    path = BACKENDS[options.target.backend].flush_path.format(timeout_s=timeout_s)
    await _order(client, path, "the cache could not be flushed", timeout_s + FLUSH_GRACE_S)


async def _order(client: HttpClient, path: str, failing: str, timeout_s: float, body: bytes = b"") -> None:
    """POST to a control route; RadixError that begins with `failing` unless the answer is 200."""
    try:
        status, answer = await client.fetch("POST", path, timeout_s, body)
    except HttpFailure as failure:
        raise RadixError(f"{failing}: {failure}") from None
    if status != 200:
        text = answer[:200].decode("utf-8", "replace").strip()
        raise RadixError(f"{failing}: {path} answered {status} {text}")


@asynccontextmanager
async def profiling(client: HttpClient, options: ProfileOptions) -> AsyncIterator[None]:
    """The server's profiler around what is measured; it stops by itself when it was given a number of steps."""
    if not options.profile:
        yield
        return
    wishes: dict[str, Any] = {
        "activities": list(options.profile_activities),
        "output_dir": options.profile_output_dir,
        "start_step": options.profile_start_step,
        "num_steps": options.profile_steps,
        "profile_by_stage": options.profile_by_stage or None,
        "profile_stages": options.profile_stages and list(options.profile_stages),
        "profile_prefix": options.profile_prefix,
    }
    body = msgspec.json.encode({name: value for name, value in wishes.items() if value is not None})
    await _order(client, "/start_profile", "the profiler did not start", PROFILE_TIMEOUT_S, body)
    yield
    if options.profile_steps is None:
        await _order(client, "/stop_profile", "the profiler did not stop", PROFILE_TIMEOUT_S)


def _progress_printer(options: Options, total: int) -> Callable[[Progress], None] | None:
    if options.output.disable_tqdm or not sys.stderr.isatty():
        return None

    def show(progress: Progress) -> None:
        text = f"{progress.done}/{total} done, {progress.in_flight} in flight, {progress.failed} failed"
        print(f"\r{text:<60}", end="", file=sys.stderr, flush=True)

    return show


def _retokenize(codec: Codec | None, outcomes: Sequence[Outcome]) -> int | None:
    if codec is None:
        return None
    texts = [outcome.text for outcome in outcomes if outcome.error is None]
    return sum(len(ids) for ids in codec.encode_batch(texts, False))


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Status 1 when the run could not be made or no request succeeded."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    options = cli.parse(argv)
    finished = run_async(run(options))
    path = options.output.output_file or output_file_name(options, datetime.now())
    if options.output.print_requests:
        print(conversation_log(finished))
    print(banner(finished))
    if options.output.plot_throughput:
        print(throughput_bars(finished))
    append_line(path, encode_line(record(finished)))
    print(f"result appended to {path}")
    return 0 if finished.metrics.completed else 1


if __name__ == "__main__":
    sys.exit(main())

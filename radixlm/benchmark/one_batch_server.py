"""`radixlm bench one-batch-server`: a server's time for one batch, sent as one streaming request."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import msgspec
import numpy as np

from radixlm.base.client_key import KEY_HELP, check_key
from radixlm.base.errors import RadixError
from radixlm.benchmark.batch_stream import BatchAnswer, generate_batch
from radixlm.benchmark.http1 import HttpClient, HttpFailure
from radixlm.benchmark.launched import at
from radixlm.benchmark.options import client_at
from radixlm.benchmark.workers import run_async
from radixlm.config.commandline import Program, append_line, command, table
from radixlm.config.flags import at_least, each, flag, http_url, within, writable

WARMUP = (1024, 16)  # tokens in and out
LARGEST_ID = 10_000
FLUSH_TIMEOUT_S = 70.0


@dataclass(frozen=True)
class CaseOptions:
    """The batches; the full product of the three lists is run."""

    run_name: str = flag("default", "a word stored in the results")
    base_url: str | None = flag(
        None, "a server that runs; one is started with the further options when unset", parse=http_url
    )
    api_key: str | None = flag(None, KEY_HELP, secret=True)
    batch_size: tuple[int, ...] = flag((1,), "requests in a batch", many=True, check=each(at_least(1)))
    input_len: tuple[int, ...] = flag((1024,), "prompt tokens of each", many=True, check=each(at_least(1)))
    output_len: tuple[int, ...] = flag((16,), "output tokens of each", many=True, check=each(at_least(1)))
    temperature: float = flag(0.0, "sampling temperature", check=at_least(0))
    disable_ignore_eos: bool = flag(False, "let answers end early")
    return_logprob: bool = flag(False, "ask for log probabilities")
    cache_hit_rate: float = flag(0.0, "share of every prompt that is sent before, to be cached", check=within(0, 1))
    skip_warmup: bool = flag(False, "measure from the first request on")
    result_filename: str = flag("result.jsonl", "JSONL file to append a line per batch to", check=writable)
    seed: int = flag(42, "seed of the prompts", check=at_least(0))


PROGRAM = Program(
    "one-batch-server",
    "Measure one batch through a server. Further options are those of radixlm serve.",
    {"case": CaseOptions},
    {
        "--profile": "radixlm profile does that",
        "--dataset-name": "prompts are random ids; radixlm bench serving has datasets",
    },
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    found, rest = PROGRAM.read_known(argv, "[MODEL] [options of radixlm serve]")
    options: CaseOptions = found["case"]
    with at(options.base_url, rest, ["--enable-cache-report"]) as url:
        lines = run_async(run(url, options))
    for line in lines:
        append_line(options.result_filename, msgspec.json.encode(line) + b"\n")
    if lines:
        print(shown(lines))
    return 0 if lines else 1


async def run(url: str, options: CaseOptions) -> list[dict[str, Any]]:
    """Every batch that the server can hold; the result lines. RadixError when one fails."""
    client = client_at(url, options.api_key)
    rng = np.random.default_rng(options.seed)
    warmed: set[int] = set()
    lines = []
    try:
        for case in product(options.batch_size, options.input_len, options.output_len):
            info = await _server_info(client)
            if (why := _misfit(info, *case)) is not None:
                print(f"skipped: batch {case[0]}, {case[1]} in, {case[2]} out: {why}", file=sys.stderr)
                continue
            if case[0] not in warmed and not options.skip_warmup:
                warmed.add(case[0])
                await _batch(client, rng, (case[0], min(case[1], WARMUP[0]), min(case[2], WARMUP[1])), options)
            await _flush(client)
            answer = await _batch(client, rng, case, options)
            lines.append(line_of(answer, case, options, await _server_info(client)))
    finally:
        client.close()
    return lines


async def _batch(
    client: HttpClient, rng: np.random.Generator, case: tuple[int, int, int], options: CaseOptions
) -> BatchAnswer:
    batch, prompt_tokens, output_tokens = case
    prompts = rng.integers(0, LARGEST_ID, (batch, prompt_tokens)).tolist()
    sampling = {"temperature": options.temperature, "ignore_eos": not options.disable_ignore_eos}
    before = int(prompt_tokens * options.cache_hit_rate)
    if before:
        await generate_batch(client, [prompt[:before] for prompt in prompts], 1, sampling, {})
    more = {"return_logprob": True} if options.return_logprob else {}
    answer = await generate_batch(client, prompts, output_tokens, sampling, more)
    early = sum(sequence.tokens < output_tokens for sequence in answer.sequences)
    if early and not options.disable_ignore_eos:
        raise RadixError(f"{early} of {batch} answers ended early although the end token was to be ignored")
    return answer


async def _server_info(client: HttpClient) -> dict[str, Any]:
    try:
        status, body = await client.fetch("GET", "/server_info", 10.0)
    except HttpFailure as failure:
        raise RadixError(str(failure)) from None
    check_key(client.target.url, status)
    if status != 200:
        raise RadixError(f"/server_info answered {status}: one-batch-server needs a server with SGLang's routes")
    info: dict[str, Any] = msgspec.json.decode(body)
    return info


async def _flush(client: HttpClient) -> None:
    try:
        status, body = await client.fetch("POST", "/flush_cache?timeout=60", FLUSH_TIMEOUT_S)
    except HttpFailure as failure:
        raise RadixError(f"the cache could not be flushed: {failure}") from None
    if status != 200:
        raise RadixError(f"the cache could not be flushed: {status} {body[:200].decode('utf-8', 'replace')}")


def _misfit(info: dict[str, Any], batch: int, prompt_tokens: int, output_tokens: int) -> str | None:
    """Why the server cannot run a batch all at once."""
    pool_tokens, running = info.get("max_total_num_tokens"), info.get("max_running_requests")
    if isinstance(running, int) and batch > running:
        return f"more than the {running} requests that may run (--max-running-requests)"
    if isinstance(pool_tokens, int) and batch * (prompt_tokens + output_tokens) > pool_tokens:
        return f"{batch * (prompt_tokens + output_tokens)} tokens do not fit into the KV pool of {pool_tokens}"
    return None


def line_of(
    answer: BatchAnswer, case: tuple[int, int, int], options: CaseOptions, info: dict[str, Any]
) -> dict[str, Any]:
    """SGLang's keys. `output_throughput` counts as SGLang's does, so it reads high; the steady-state one does not."""
    batch, prompt_tokens, output_tokens = case
    latency_s = answer.end_s - answer.sent_s
    last_first_s = max(sequence.marks[0][0] for sequence in answer.sequences)
    first_end_s = min(sequence.ended_s for sequence in answer.sequences)
    last_ttft_s = last_first_s - answer.sent_s
    total_output = sum(sequence.tokens for sequence in answer.sequences)
    window_s = first_end_s - last_first_s
    steady = sum(s.tokens_at(first_end_s) - s.tokens_at(last_first_s) for s in answer.sequences)
    prompt_total = sum(sequence.prompt_tokens for sequence in answer.sequences)
    told = [sequence.cached_tokens for sequence in answer.sequences if sequence.cached_tokens is not None]
    state = (info.get("internal_states") or [{}])[0]
    after_s = latency_s - last_ttft_s
    return {
        "run_name": options.run_name,
        "batch_size": batch,
        "input_len": prompt_tokens,
        "output_len": output_tokens,
        "latency": latency_s,
        "input_throughput": batch * prompt_tokens / last_ttft_s,
        "output_throughput": total_output / after_s if after_s > 0 else None,
        "overall_throughput": (batch * prompt_tokens + total_output) / latency_s,
        "last_ttft": last_ttft_s,
        "last_gen_throughput": state.get("last_gen_throughput") or None,
        "acc_length": state.get("avg_spec_accept_length"),
        "total_output_tokens": total_output,
        "num_early_stopped": sum(sequence.tokens < output_tokens for sequence in answer.sequences),
        "steady_state_output_throughput": steady / window_s if window_s > 0 else None,
        "steady_state_window_s": max(window_s, 0.0),
        "cache_hit_rate": sum(told) / prompt_total if told and prompt_total else None,
    }


def shown(lines: Sequence[dict[str, Any]]) -> str:
    """The results as a table."""
    heads = ["batch", "in", "out", "latency s", "last TTFT s", "in tok/s", "out tok/s", "steady out tok/s", "hits"]
    rows = [heads]
    for line in lines:
        cells = [str(line[key]) for key in ("batch_size", "input_len", "output_len")]
        cells += [f"{line['latency']:.3f}", f"{line['last_ttft']:.3f}", f"{line['input_throughput']:.1f}"]
        cells += ["-" if v is None else f"{v:.1f}" for v in (line["output_throughput"],)]
        cells += ["-" if v is None else f"{v:.1f}" for v in (line["steady_state_output_throughput"],)]
        rows.append([*cells, "-" if line["cache_hit_rate"] is None else f"{100 * line['cache_hit_rate']:.0f} %"])
    return table(rows)


if __name__ == "__main__":
    sys.exit(main())

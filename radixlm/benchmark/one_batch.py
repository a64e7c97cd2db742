"""`radixlm bench one-batch`: scheduler and model in this process, one batch at a time, and what each stage costs.

There is no HTTP, no tokenizer and no other process, and one step is done before the next is planned; so the numbers
are a floor under what a server can show.
"""

import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from radixlm.config.cli import read_serve
from radixlm.config.commandline import Program, append_line, command, table
from radixlm.config.flags import at_least, each, flag, writable
from radixlm.engine.build import Engine, build
from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.protocol.messages import TextOptions, TokenizedGenerateReqInput
from radixlm.protocol.sampling import SamplingParams

WARMUP_OUTPUT_TOKENS = 32
LARGEST_ID = 10_000


@dataclass(frozen=True)
class CaseOptions:
    """The batches; the full product of the three lists is run."""

    run_name: str = flag("default", "a word stored in the results")
    batch_size: tuple[int, ...] = flag((1,), "requests in a batch", many=True, check=each(at_least(1)))
    input_len: tuple[int, ...] = flag((1024,), "prompt tokens of each", many=True, check=each(at_least(1)))
    output_len: tuple[int, ...] = flag((16,), "output tokens of each", many=True, check=each(at_least(1)))
    result_filename: str = flag("result.jsonl", "JSONL file to append a line per batch to", check=writable)
    log_decode_step: int = flag(0, "print every N-th decode step; 0: none", check=at_least(0))
    seed: int = flag(42, "seed of the prompts", check=at_least(0))


PROGRAM = Program(
    "one-batch",
    "Run single batches through scheduler and model, without a server. Further options are those of radixlm serve.",
    {"case": CaseOptions},
    {
        "--correctness-test": "tests of parity do that",
        "--profile": "radixlm profile does that",
        "--prompt-filename": "prompts are random ids: their text does not change the work",
    },
)


@dataclass(frozen=True)
class Step:
    """One step's stages, in seconds, and what it did. `started`: requests that have their first token now."""

    plan_s: float
    launch_s: float
    wait_s: float
    commit_s: float
    started: int
    tokens: int

    @property
    def seconds(self) -> float:
        return self.plan_s + self.launch_s + self.wait_s + self.commit_s


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    found, rest = PROGRAM.read_known(argv, "MODEL [options of radixlm serve]")
    options: CaseOptions = found["case"]
    config = read_serve(rest)
    source = resolve(config.model.model_path, config.model.revision, config.model.download_dir)
    card = load_card(source, json.loads(config.model.json_model_override_args))
    engine = build(config, source, card)
    lines = run(engine, card.vocab_size, options)
    for line in lines:
        append_line(options.result_filename, json.dumps(line).encode() + b"\n")
    if lines:
        print(shown(lines))
    return 0 if lines else 1


def run(engine: Engine, vocab_size: int, options: CaseOptions) -> list[dict[str, Any]]:
    """Every batch that fits, after one to warm up; the result lines."""
    rng = np.random.default_rng(options.seed)
    highest = min(vocab_size, LARGEST_ID)
    cases = list(itertools.product(options.batch_size, options.input_len, options.output_len))
    fitting = [case for case in cases if (why := engine.misfit(*case)) is None or _told(case, why)]
    lines = []
    for number, (batch, prompt_tokens, output_tokens) in enumerate(fitting):
        if number == 0:
            run_batch(engine, _prompts(rng, highest, batch, prompt_tokens), min(WARMUP_OUTPUT_TOKENS, output_tokens))
        steps = run_batch(engine, _prompts(rng, highest, batch, prompt_tokens), output_tokens)
        line = {"run_name": options.run_name, "batch_size": batch, "input_len": prompt_tokens}
        line |= {"output_len": output_tokens, **summarize(steps, batch, prompt_tokens, output_tokens)}
        lines.append(line)
        _log_steps(steps, options.log_decode_step)
    return lines


def _prompts(rng: np.random.Generator, highest: int, batch: int, tokens: int) -> list[np.ndarray[Any, Any]]:
    return [rng.integers(0, highest, tokens, dtype=np.int32) for _ in range(batch)]


def _told(case: tuple[int, int, int], why: str) -> bool:
    print(f"skipped: batch {case[0]}, {case[1]} in, {case[2]} out: {why}", file=sys.stderr)
    return False


def run_batch(engine: Engine, prompts: Sequence[Any], output_tokens: int) -> list[Step]:
    """Run one batch to its end; the steps it took. A step ends when its tokens are on the host."""
    sampling = SamplingParams(max_new_tokens=output_tokens, temperature=0.0, ignore_eos=True)
    now_s = time.time()
    events: list[Any] = [
        TokenizedGenerateReqInput(key, ids, sampling, TextOptions(), True, now_s) for key, ids in enumerate(prompts)
    ]
    steps: list[Step] = []
    ended = 0
    while ended < len(prompts):
        times = [time.perf_counter()]
        plan = engine.scheduler.plan(events, time.time())
        events = []
        times.append(time.perf_counter())
        if plan is not None:
            flight = engine.runner.launch(plan)
            times.append(time.perf_counter())
            result = engine.runner.retire(flight)
            times.append(time.perf_counter())
            engine.scheduler.commit(result, time.time())
        output = engine.scheduler.take_output()
        engine.scheduler.take_log_lines()
        times.append(time.perf_counter())
        if output is not None:
            ended += len(output.finished)
        if len(times) == 5:
            plan_s, launch_s, wait_s, commit_s = (after - before for before, after in itertools.pairwise(times))
            started = 0 if output is None else len(output.started)
            tokens = 0 if output is None else len(output.tokens)
            steps.append(Step(plan_s, launch_s, wait_s, commit_s, started, tokens))
    return steps


def summarize(steps: Sequence[Step], batch: int, prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
    """SGLang's keys, then the stages of a decode step. Prefill lasts until every request has its first token.

    The first decode step is left out of the median, as SGLang does, unless there is no other.
    """
    waiting = batch
    prefill_steps = 0
    for step in steps:
        waiting -= step.started
        prefill_steps += 1
        if not waiting:
            break
    prefill_s = sum(step.seconds for step in steps[:prefill_steps])
    decode = list(steps[prefill_steps:])[1:] or list(steps[prefill_steps:])
    total_s = sum(step.seconds for step in steps)
    line: dict[str, Any] = {
        "prefill_latency": prefill_s,
        "prefill_throughput": batch * prompt_tokens / prefill_s,
        "prefill_steps": prefill_steps,
        "total_latency": total_s,
        "overall_throughput": (prompt_tokens + output_tokens) * batch / total_s,
    }
    if decode:
        decode_s = median(step.seconds for step in decode)
        line |= {"median_decode_latency": decode_s, "median_decode_throughput": batch / decode_s}
        stages = asdict(decode[0]).keys() - {"started", "tokens"}
        line |= {f"median_decode_{stage[:-2]}_ms": _median_ms(decode, stage) for stage in sorted(stages)}
    return line


def _median_ms(steps: Sequence[Step], stage: str) -> float:
    return median(float(getattr(step, stage)) for step in steps) * 1000


def _log_steps(steps: Sequence[Step], every: int) -> None:
    for number, step in enumerate(steps):
        if every and number % every == 0:
            print(f"step {number}: {step.seconds * 1000:.2f} ms, {step.tokens} tokens")


def shown(lines: Sequence[dict[str, Any]]) -> str:
    """The results as a table; latencies in ms."""
    heads = ["batch", "in", "out", "prefill ms", "tok/s", "decode ms", "tok/s", "plan", "launch", "wait", "commit"]
    rows = [heads]
    for line in lines:
        cells = [str(line[key]) for key in ("batch_size", "input_len", "output_len")]
        cells += [f"{line['prefill_latency'] * 1000:.1f}", f"{line['prefill_throughput']:.0f}"]
        if "median_decode_latency" in line:
            cells += [f"{line['median_decode_latency'] * 1000:.2f}", f"{line['median_decode_throughput']:.1f}"]
            cells += [f"{line[f'median_decode_{stage}_ms']:.3f}" for stage in ("plan", "launch", "wait", "commit")]
        rows.append(cells + ["-"] * (len(heads) - len(cells)))
    return table(rows)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m radixlm.engine.step_cost`: what a decode step costs the host, phase by phase, against the batch's size.

Drives a real engine in this process, without sockets, as the loop does. With --profile it also asks the device how long
it was busy, and with what.
"""

import cProfile
import io
import json
import pstats
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from radixlm.base import log
from radixlm.base.errors import ConfigError, RadixError
from radixlm.config.commandline import Program, command, made_folder
from radixlm.config.flags import at_least, each, flag, json_object, writable
from radixlm.config.groups import Config
from radixlm.engine.build import Engine, build
from radixlm.loader.card import load_card
from radixlm.loader.demo import DEMO
from radixlm.loader.source import resolve
from radixlm.protocol.messages import AbortReq, TextOptions, TokenizedGenerateReqInput, encode
from radixlm.protocol.sampling import SamplingParams
from radixlm.runner.runner import StepInFlight

PHASES = ("plan", "launch", "wait", "commit", "output")
SETTLE_STEPS = 20
SLACK_STEPS = 100  # decoded while the last prompts are still being computed
PROMPT_TOKENS = 32
PROFILED_STEPS = 10
HOST_PROFILED_STEPS = 40
PRINTED_FUNCTIONS = 30
TOP_KERNELS = 25
SMALLEST_VOCABULARY = 100


@dataclass(frozen=True)
class CostOptions:
    """What is measured, of which engine, and where its files go."""

    flags: Mapping[str, Any] | None = flag(
        None,
        "JSON object of server flags; model_path is demo unless it says another",
        parse=json_object,
        metavar="JSON",
    )
    batches: tuple[int, ...] = flag(
        (1, 8, 64, 256, 1024, 2000),
        "rows that decode; those that the engine cannot run at once are left out",
        many=True,
        check=each(at_least(1)),
    )
    steps: int = flag(60, "steps timed at each size", check=at_least(1))
    context: int = flag(PROMPT_TOKENS, "prompt tokens of each request", check=at_least(1))
    prefill: tuple[int, ...] = flag((), "prompt lengths to time by themselves", many=True, check=each(at_least(1)))
    profile: bool = flag(False, "say how busy the CUDA device was, and with which kernels")
    trace: Path | None = flag(None, f"folder for traces of {PROFILED_STEPS} steps", needs="profile")
    host_profile: bool = flag(False, "print where Python spends a step at each size")
    out: Path | None = flag(None, "JSON file for all of it", check=writable)

    @property
    def lasts(self) -> int:
        """Output tokens of each request: longer ones would be admitted later."""
        return SLACK_STEPS + SETTLE_STEPS + self.steps + HOST_PROFILED_STEPS + PROFILED_STEPS


PROGRAM = Program(
    "radixlm.engine.step_cost",
    "Measure what a decode step costs the host, phase by phase, against the batch's size.",
    {"cost": CostOptions},
    family="python -m",
)


@dataclass
class Driver:
    """The loop's turn with a stopwatch: seconds of every phase of every step, in `spent`.

    `decoding` is how many rows of the last step decoded.
    """

    engine: Engine
    in_flight: deque[StepInFlight] = field(default_factory=deque)
    decoding: int = 0
    spent: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PHASES})

    def turn(self, events: Sequence[TokenizedGenerateReqInput | AbortReq] = ()) -> None:
        scheduler, runner = self.engine.scheduler, self.engine.runner
        marks = [time.perf_counter()]
        plan = scheduler.plan(events, time.time())
        marks.append(time.perf_counter())
        if plan is not None:
            self.in_flight.append(runner.launch(plan))
            self.decoding = plan.decode_rows
        marks.append(time.perf_counter())
        result = None
        if self.in_flight and (plan is None or len(self.in_flight) > self.engine.run_ahead):
            result = runner.retire(self.in_flight.popleft())
        marks.append(time.perf_counter())
        if result is not None:
            if result.error is not None:
                raise RadixError(f"a step failed: {result.error}")
            scheduler.commit(result, time.time())
        marks.append(time.perf_counter())
        output = scheduler.take_output()
        if output is not None:
            encode(output)
        scheduler.take_log_lines()
        marks.append(time.perf_counter())
        for name, began, ended in zip(PHASES, marks, marks[1:], strict=False):
            self.spent[name].append(ended - began)

    def fill(
        self, batch: int, context_tokens: int, first_key: int, params: SamplingParams, ends: bool = False
    ) -> list[int]:
        """Start `batch` requests and turn until all of them decode, or all have ended; their keys.

        RadixError when the first have ended before the last decode.
        """
        rng = np.random.default_rng(batch)
        keys = list(range(first_key, first_key + batch))
        self.turn(
            [
                TokenizedGenerateReqInput(
                    key,
                    rng.integers(0, SMALLEST_VOCABULARY, context_tokens).astype(np.int32),
                    params,
                    TextOptions(),
                    True,
                    0.0,
                )
                for key in keys
            ]
        )
        while not self.engine.scheduler.idle if ends else self.decoding < batch:
            self.turn()
            if not ends and self.engine.scheduler.idle:
                raise RadixError(f"{batch} rows of {context_tokens} tokens never decode all at once: take fewer")
        return keys

    def clear(self, keys: list[int]) -> None:
        """End the requests, and turn until nothing is left."""
        self.turn([AbortReq(keys)])
        while not self.engine.scheduler.idle:
            self.turn()


def prefill(driver: Driver, tokens: int, key: int, host_profile: bool) -> dict[str, Any]:
    """Milliseconds of one prompt by itself, and of the host's part in it; the best of three."""
    params = SamplingParams(temperature=0.0, max_new_tokens=1)
    best: dict[str, Any] = {}
    for attempt in range(3):
        driver.spent = {name: [] for name in PHASES}
        began = time.perf_counter()
        driver.fill(1, tokens, key + attempt * 1_000_000, params, ends=True)
        total_ms = (time.perf_counter() - began) * 1e3
        if not best or total_ms < best["total_ms"]:
            launch_ms = sum(driver.spent["launch"]) * 1e3
            best = {"prompt": tokens, "total_ms": round(total_ms, 2), "launch_ms": round(launch_ms, 2)}
        driver.engine.scheduler.flush_cache(time.time())
    if host_profile:
        with _host_profile(f"a prompt of {tokens} tokens"):
            driver.fill(1, tokens, key + 10_000_000, params, ends=True)
        driver.engine.scheduler.flush_cache(time.time())
    return best


def measure(driver: Driver, batch: int, options: CostOptions, first_key: int) -> dict[str, Any]:
    """One row of the table: median microseconds of each phase at this batch size."""
    steps = options.steps
    params = SamplingParams(temperature=0.0, max_new_tokens=options.lasts, ignore_eos=True)
    keys = driver.fill(batch, options.context, first_key, params)
    for _ in range(SETTLE_STEPS):
        driver.turn()
    driver.spent = {name: [] for name in PHASES}
    began = time.perf_counter()
    for _ in range(steps):
        driver.turn()
    step_us = (time.perf_counter() - began) / steps * 1e6
    row: dict[str, Any] = {"batch": batch, "step_us": round(step_us, 1)}
    medians = {name: float(np.median(driver.spent[name])) * 1e6 for name in PHASES}
    row |= {f"{name}_us": round(value, 1) for name, value in medians.items()}
    row["host_us"] = round(sum(value for name, value in medians.items() if name != "wait"), 1)
    row["worst_host_us"] = round(
        float(np.max(sum(np.array(driver.spent[name]) for name in PHASES if name != "wait"))) * 1e6, 1
    )
    if options.host_profile:
        with _host_profile(f"{HOST_PROFILED_STEPS} steps of {batch} rows"):
            for _ in range(HOST_PROFILED_STEPS):
                driver.turn()
    driver.clear(keys)
    return row


def device_profile(
    driver: Driver, batch: int, context_tokens: int, first_key: int, traces: Path | None
) -> dict[str, Any]:
    """How busy the device is at this batch size, and with what. Makes every later launch slower: measure first."""
    lasts = SLACK_STEPS + SETTLE_STEPS + PROFILED_STEPS
    params = SamplingParams(temperature=0.0, max_new_tokens=lasts, ignore_eos=True)
    keys = driver.fill(batch, context_tokens, first_key, params)
    for _ in range(SETTLE_STEPS):
        driver.turn()
    found = _profiled(driver, None if traces is None else traces / f"decode-{batch}.json.gz")
    driver.clear(keys)
    return found


@contextmanager
def _host_profile(what: str) -> Iterator[None]:
    """Print where Python spends its time in the body."""
    profiler = cProfile.Profile()
    profiler.enable()
    yield
    profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(PRINTED_FUNCTIONS)
    print(f"--- {what}\n{text.getvalue()}", flush=True)


def _profiled(driver: Driver, path: Path | None) -> dict[str, Any]:
    """The device's busy share over some steps, and the kernels that took most of it; the trace goes to `path`."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(PROFILED_STEPS):
            driver.turn()
        torch.cuda.synchronize()
    if path is not None:
        trace.export_chrome_trace(str(path))
    events = [event for event in trace.events() if event.device_type.name == "CUDA"]
    spans = sorted((event.time_range.start, event.time_range.end) for event in events)
    spans = spans[len(spans) // 4 :]  # the profiler's own start shows in the first steps
    if not spans:
        return {}
    busy, gaps, reached = 0.0, [], spans[0][0]
    for start, end in spans:
        if start > reached:
            gaps.append(start - reached)
        busy += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    whole = reached - spans[0][0]
    kernels: dict[str, list[float]] = {}
    for event in events:
        kernels.setdefault(event.name, []).append(event.time_range.end - event.time_range.start)
    top = sorted(kernels.items(), key=lambda item: -sum(item[1]))[:TOP_KERNELS]
    return {
        "device_busy": round(busy / whole, 4),
        "device_us": round(busy / PROFILED_STEPS / 0.75, 1),
        "largest_gap_us": round(max(gaps, default=0.0), 1),
        "launches": round(len(events) / PROFILED_STEPS, 1),
        "kernels": [
            [name[:90], round(len(t) / PROFILED_STEPS, 1), round(sum(t) / PROFILED_STEPS, 1)] for name, t in top
        ],
    }


def run(engine: Engine, options: CostOptions) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The prompts and the rows of the table, each printed as it is known. ConfigError for lengths that never fit."""
    for flag_name, tokens, lasts in (
        *(("--prefill", tokens, 1) for tokens in options.prefill),
        ("--context", options.context, options.lasts),
    ):
        if why := engine.misfit(1, tokens, lasts):
            raise ConfigError(f"{flag_name} {tokens} and {lasts} tokens of output: {why}")
    driver, rows, first_key = Driver(engine), [], 1
    prompts = [prefill(driver, tokens, 1_000_000_000 + tokens, options.host_profile) for tokens in options.prefill]
    print("\n".join(map(str, prompts)), flush=True)
    for batch in options.batches:
        if why := engine.misfit(batch, options.context, options.lasts):
            print(f"skipped: {batch} rows: {why}", file=sys.stderr)
            continue
        rows.append(measure(driver, batch, options, first_key))
        first_key += batch
        print(rows[-1], flush=True)
    for row in rows if options.profile else ():
        row |= device_profile(driver, row["batch"], options.context, first_key, options.trace)
        first_key += row["batch"]
        print({name: value for name, value in row.items() if name != "kernels"}, flush=True)
    return prompts, rows


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Status 1 when no row could be measured."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    options: CostOptions = PROGRAM.read(argv)["cost"]
    flags = {"model_path": DEMO, **(options.flags or {})}
    config = Config.from_flat(flags)
    if options.profile and (config.device.device == "cpu" or not torch.cuda.is_available()):
        raise ConfigError("--profile asks a CUDA device, and the engine runs on the CPU")
    if options.trace is not None:
        made_folder(options.trace, "--trace")
    log.setup("info")
    source = resolve(config.model.model_path, config.model.revision, config.model.download_dir)
    engine = build(config, source, load_card(source, json.loads(config.model.json_model_override_args)))
    print("\n".join(engine.ready.report), flush=True)
    prompts, rows = run(engine, options)
    if options.out is not None:
        found = {"flags": flags, "facts": engine.ready.facts, "prefill": prompts, "rows": rows}
        options.out.write_text(json.dumps(found, indent=1))
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())

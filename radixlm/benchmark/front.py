"""`python -m radixlm.benchmark.front`: what the front end costs, measured with a paced engine in the model's place.

Starts the server with its processes as in production, sends load with the benchmark's own client, samples the CPU time
of every process, and prints events and requests per second and the CPU time of each. Knows no route and no engine.
"""

import json
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from radixlm.base.errors import RadixError
from radixlm.benchmark.backends import BACKENDS, BodySettings
from radixlm.benchmark.datasets import spec as datasets
from radixlm.benchmark.datasets.spec import DatasetSpec
from radixlm.benchmark.gpu_matrix import MODELS, Server, make_model, split_words, tokenizer_folder
from radixlm.benchmark.http1 import Target
from radixlm.benchmark.load import Plan
from radixlm.benchmark.outcome import Outcome
from radixlm.benchmark.tokens import Vocabulary
from radixlm.benchmark.workers import Measured, measure, run_async
from radixlm.config.commandline import Program, append_line, command, made_folder
from radixlm.config.flags import at_least, flag

MODEL = "qwen3-0.6b"
SAMPLE_S = 0.1
PACED = "radixlm.launch.paced"


@dataclass(frozen=True)
class Case:
    """One load. Lengths in tokens, uniform from half of the largest where `spread`. `at_once` None: all of them."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    text: bool
    spread: bool
    at_once: int | None
    step_ms: float


CASES = {
    "events": Case(2000, 16, 300, text=False, spread=False, at_once=None, step_ms=66.0),
    "requests": Case(2000, 384, 2, text=True, spread=False, at_once=64, step_ms=5.0),
    "rate": Case(3000, 512, 128, text=True, spread=True, at_once=None, step_ms=80.0),
}


@dataclass(frozen=True)
class FrontOptions:
    """What is measured, and how."""

    out: Path = flag(Path("/tmp/radixlm-front"), "folder for logs and results")
    cases: tuple[str, ...] = flag(tuple(CASES), "the loads that run", many=True, choices=tuple(CASES))
    backend: str = flag("sglang-oai", "the API to speak", choices=tuple(BACKENDS))
    tokenizer: Path | None = flag(
        None, "folder of a real tokenizer; one is made up without it", parse=tokenizer_folder, metavar="FOLDER"
    )
    client_processes: int = flag(2, "client processes", check=at_least(1))
    repeat: int = flag(1, "runs of each case", check=at_least(1))
    flags: tuple[str, ...] = flag((), "server flags, in one word", parse=split_words, metavar="FLAGS")


@dataclass(frozen=True)
class CaseOptions:
    """In place of each case's own."""

    requests: int | None = flag(None, "how many requests", check=at_least(1))
    prompt_tokens: int | None = flag(None, "tokens of a prompt", check=at_least(1))
    output_tokens: int | None = flag(None, "tokens of an answer", check=at_least(1))
    at_once: int | None = flag(None, "most requests in flight", check=at_least(1))
    step_ms: float | None = flag(None, "milliseconds that a step of the engine takes", check=at_least(0))


PROGRAM = Program(
    "radixlm.benchmark.front",
    "What the front end costs, measured with a paced engine in the model's place.",
    {"front": FrontOptions, "case": CaseOptions},
    family="python -m",
)


@dataclass(frozen=True)
class Result:
    """What one run of a case has shown. Rates are those of the steady window, while all streams run, where there is
    one (`steady`), otherwise of the whole run. CPU in per cent of a core, by process."""

    case: str
    seconds: float
    steady: bool
    events_per_s: float
    tokens_per_s: float
    requests_per_s: float
    front_us_per_event: float
    front_ms_per_request: float
    cpu_percent: dict[str, float]
    client_cpu_percent: float
    failed: int


class CpuSampler:
    """CPU seconds of a process and its children, read again and again in a thread of its own."""

    def __init__(self, pid: int) -> None:
        parent = psutil.Process(pid)
        children = parent.children(recursive=True)
        self._processes = {"front": parent} | {_role(child): child for child in children}
        self._rows: list[tuple[float, list[float]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self._read()

    def _read(self) -> None:
        with suppress(psutil.NoSuchProcess):
            now = time.perf_counter()
            self._rows.append((now, [p.cpu_times().user + p.cpu_times().system for p in self._processes.values()]))

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._read()

    def spent(self, start_s: float, end_s: float) -> dict[str, float]:
        """CPU seconds by process between two times of time.perf_counter."""
        times = np.array([at for at, _ in self._rows])
        used = np.array([row for _, row in self._rows])
        between = [np.interp((start_s, end_s), times, column) for column in used.T]
        return {name: float(b - a) for name, (a, b) in zip(self._processes, between, strict=True)}


def _role(process: psutil.Process) -> str:
    """`radixlm::detokenizer` is "detokenizer"; whatever has no title of ours is called by its number."""
    title = " ".join(process.cmdline())
    return title.partition("radixlm::")[2].strip() or f"pid {process.pid}"


def window(outcomes: Sequence[Outcome]) -> tuple[float, float, bool]:
    """The time while all streams run (every one has begun, none has ended), if it is a fair part of the whole; else
    the whole, from the first sending to the last answer. The third value says which."""
    begun = max((one.event_s[0] for one in outcomes if one.event_s), default=0.0)
    ended = min((one.event_s[-1] for one in outcomes if one.event_s), default=0.0)
    first, last = min(one.sent_s for one in outcomes), max(one.end_s for one in outcomes)
    steady = ended - begun > 0.3 * (last - first)
    return (begun, ended, True) if steady else (first, last, False)


def summarize(name: str, measured: Measured, cpu: CpuSampler) -> Result:
    """The figures of a run."""
    outcomes = [one for one in measured.outcomes if one.error is None]
    if not outcomes:
        raise RadixError(f"{name}: every request failed: {measured.outcomes[0].error}")
    start_s, end_s, steady = window(outcomes)
    seconds = end_s - start_s
    inside = [(at, tokens) for one in outcomes for at, tokens in zip(one.event_s, one.event_tokens, strict=True)]
    counted = [tokens for at, tokens in inside if start_s <= at <= end_s]
    spent = cpu.spent(start_s, end_s)
    whole_s = max(one.end_s for one in outcomes) - min(one.sent_s for one in outcomes)
    return Result(
        case=name,
        seconds=round(seconds, 2),
        steady=steady,
        events_per_s=round(len(counted) / seconds),
        tokens_per_s=round(sum(counted) / seconds),
        requests_per_s=round(len(outcomes) / whole_s, 1),
        front_us_per_event=round(1e6 * spent["front"] / max(len(counted), 1), 2),
        front_ms_per_request=round(1e3 * spent["front"] / len(outcomes), 3),
        cpu_percent={role: round(100 * used / seconds, 1) for role, used in spent.items()},
        client_cpu_percent=round(measured.cpu_percent, 1),
        failed=len(measured.outcomes) - len(outcomes),
    )


def plan(case: Case, backend: str, port: int, vocabulary: Vocabulary) -> Plan:
    """The load of a case, all of it due at once."""
    spec = DatasetSpec(
        dataset_name="random-ids",
        num_prompts=case.requests,
        tokenize_prompt=not case.text,
        random_input_len=case.prompt_tokens,
        random_output_len=case.output_tokens,
        random_range_ratio=0.5 if case.spread else 1.0,
    )
    requests = datasets.build(spec, vocabulary, 1)
    body = BodySettings(MODEL)
    indices, due_s = list(range(len(requests))), [0.0] * len(requests)
    return Plan(Target("127.0.0.1", port), backend, body, requests, indices, due_s, case.at_once)


def run_case(name: str, case: Case, model: Path, vocabulary: Vocabulary, options: FrontOptions) -> Result:
    """A server of its own for one run."""
    program = (PACED, "--step-ms", str(case.step_ms))
    server = Server(model, options.flags, options.out / f"front-{name}.log", program)
    try:
        load = plan(case, options.backend, server.port, vocabulary)
        cpu = CpuSampler(server.pid)
        measured = run_async(measure(load, options.client_processes))
        cpu.stop()
        return summarize(name, measured, cpu)
    finally:
        server.stop()


def line(result: Result) -> str:
    """A result for eyes."""
    cpu = ", ".join(f"{role} {used:.0f} %" for role, used in result.cpu_percent.items())
    return (
        f"{result.case}: {result.events_per_s} events/s, {result.tokens_per_s} tokens/s, "
        f"{result.requests_per_s} requests/s; front {result.front_us_per_event} µs per event, "
        f"{result.front_ms_per_request} ms per request; CPU: {cpu}, client {result.client_cpu_percent:.0f} %"
        + (f"; {result.failed} FAILED" if result.failed else "")
    )


def _load_vocabulary(model: Path) -> Vocabulary:
    from radixlm.loader.source import resolve
    from radixlm.loader.tokenizer import load_tokenizer

    return Vocabulary.of_codec(load_tokenizer(resolve(str(model))))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; status 1 when a run could not be made or requests failed."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    found = PROGRAM.read(argv)
    options: FrontOptions = found["front"]
    changes: dict[str, Any] = {name: value for name, value in asdict(found["case"]).items() if value is not None}
    model = make_model(made_folder(options.out, "--out") / MODEL, MODELS[MODEL], options.tokenizer)
    vocabulary = _load_vocabulary(model)
    failed = 0
    for name in options.cases * options.repeat:
        result = run_case(name, replace(CASES[name], **changes), model, vocabulary, options)
        failed += result.failed
        print(line(result), flush=True)
        shown = {**asdict(result), "flags": options.flags, "backend": options.backend}
        append_line(str(options.out / "front.jsonl"), json.dumps(shown).encode() + b"\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m radixlm.benchmark.cpu_matrix`: the demo model on this CPU, beside another server of the same weights.

Both servers stand at once and take turns, workload by workload and round by round, so that a noisy machine disturbs
both alike; while one is measured the other is suspended, so that neither disturbs the other. Knows no tensor and no
engine.
"""

import shlex
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from radixlm.base.errors import RadixError
from radixlm.benchmark.backends import BACKENDS
from radixlm.benchmark.gpu_matrix import THROUGHPUT, Workload, random_ids, run_client, split_words
from radixlm.benchmark.launched import ServerProcess
from radixlm.config.commandline import Program, command, made_folder, table
from radixlm.config.flags import REQUIRED, at_least, flag

START_LIMIT_S = 300.0
OUTPUT = (("output tok/s", "output_throughput"),)
_PREFIX = (
    *("--dataset-name", "generated-shared-prefix", "--gsp-num-groups", "1", "--gsp-prompts-per-group", "32"),
    *("--gsp-system-prompt-len", "1024", "--gsp-question-len", "32", "--gsp-output-len", "32"),
)

# `peer` and `goal` are filled by the run itself: the other server is measured, not remembered.
WORKLOADS = (
    Workload(
        "S1",
        "demo",
        random_ids(8, 128, 64, 1.0, "--max-concurrency", "1"),
        (("ms per token", "median_tpot_ms"), ("TTFT ms", "median_ttft_ms")),
        "",
        "",
    ),
    Workload("S2", "demo", random_ids(32, 256, 64, 1.0, "--max-concurrency", "16"), OUTPUT, "", ""),
    Workload("S3", "demo", (*_PREFIX, "--max-concurrency", "16"), (*OUTPUT, *THROUGHPUT), "", ""),
    Workload("S4", "demo", random_ids(4, 4000, 8, 1.0, "--max-concurrency", "1"), (("s", "duration"),), "", ""),
)


class Peer(ServerProcess):
    """Another server: a command with {port} in it."""

    def command(self, words: Sequence[str], program: Sequence[str]) -> list[str]:
        return [word.replace("{port}", str(self.port)) for word in words]


@dataclass(frozen=True)
class Contestant:
    """A server and how the client speaks to it."""

    name: str
    server: ServerProcess
    client: tuple[str, ...]

    def processes(self) -> list[psutil.Process]:
        """The server's, the parent first."""
        process = psutil.Process(self.server.pid)
        return [process, *process.children(recursive=True)]

    def resident_bytes(self) -> int:
        """What its processes hold in memory."""
        return sum(one.memory_info().rss for one in self.processes())


@contextmanager
def suspended(contestants: Sequence[Contestant]) -> Iterator[None]:
    """Their processes get no processor time inside."""
    processes = [process for one in contestants for process in one.processes()]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def peer_command(text: str) -> tuple[str, ...]:
    """The words of another server's command line; ValueError when it cannot be started as one."""
    words = tuple(shlex.split(text))
    if words and shutil.which(words[0]) is None:
        raise ValueError(f"there is no program {words[0]}")
    if words and "{port}" not in text:
        raise ValueError("must say where its port belongs: {port}")
    return words


_NAMES = tuple(workload.name for workload in WORKLOADS)


@dataclass(frozen=True)
class MatrixOptions:
    """What runs, against which server, and where its files go."""

    out: Path = flag(REQUIRED, "folder for logs, results and the table")
    workloads: tuple[str, ...] = flag(_NAMES, "those that run", many=True, choices=_NAMES)
    repeat: int = flag(3, "rounds that count, after one that does not", check=at_least(1))
    flags: tuple[str, ...] = flag((), "more server flags, in one word", parse=split_words, metavar="FLAGS")
    peer: tuple[str, ...] = flag(
        (), "command of another server, with {port} for its port", parse=peer_command, metavar="COMMAND"
    )
    peer_backend: str = flag("vllm", "the benchmark client's backend for it", choices=tuple(BACKENDS))


PROGRAM = Program(
    "radixlm.benchmark.cpu_matrix",
    "The demo model on this CPU, beside another server of the same weights.",
    {"matrix": MatrixOptions},
    family="python -m",
)


def contestants(options: MatrixOptions, stack: ExitStack) -> list[Contestant]:
    """Start the servers."""
    ids = ("--tokenizer", "demo")
    ours = ServerProcess(["demo", "--enable-cache-report", *options.flags], options.out / "radixlm.log", START_LIMIT_S)
    stack.callback(ours.stop)
    found = [Contestant("radixlm", ours, ("--backend", "sglang-oai", *ids))]
    if options.peer:
        peer = Peer(options.peer, options.out / "peer.log", START_LIMIT_S)
        stack.callback(peer.stop)
        found.append(Contestant("peer", peer, ("--backend", options.peer_backend, *ids)))
    for one in found:
        print(f"{one.name}: ready after {one.server.started_s:.1f} s", flush=True)
    return found


def run(options: MatrixOptions) -> list[list[str]]:
    """Every chosen workload `options.repeat` times on each server; the table's rows. RadixError when one fails."""
    chosen = [workload for workload in WORKLOADS if workload.name in options.workloads]
    made_folder(options.out, "--out")
    with ExitStack() as stack:
        servers = contestants(options, stack)
        results: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for number in range(options.repeat + 1):  # the first round warms up
            for workload in chosen:
                for one in servers:
                    folder = made_folder(options.out / one.name, "--out")
                    try:
                        with suspended([other for other in servers if other is not one]):
                            line = run_client(workload, one.server.port, folder, (*one.client, "--seed", str(number)))
                    except RadixError as error:
                        raise RadixError(f"{workload.name} on {one.name} failed: {error}") from error
                    if number:
                        results.setdefault((workload.name, one.name), []).append(line)
            print(f"round {number} of {options.repeat} done", flush=True)
        rows = [_row(workload, key, label, servers, results) for workload in chosen for label, key in workload.shown]
        memory = [f"{one.resident_bytes() / 1e9:.2f}" for one in servers]
        starts = [f"{one.server.started_s:.1f}" for one in servers]
    rows.append(["", "resident GB", *memory, *[""] * 4])
    rows.append(["", "start, s", *starts, *[""] * 4])
    return rows


def _row(
    workload: Workload,
    key: str,
    label: str,
    servers: Sequence[Contestant],
    results: dict[tuple[str, str], list[dict[str, Any]]],
) -> list[str]:
    """Medians with ranges, with two servers ours over the other's, round by round, and what belongs to them."""
    lines = [results[workload.name, one.name] for one in servers]
    values = [[float(line[key]) for line in side] for side in lines]
    cells = [f"{statistics.median(v):.4g} ({min(v):.4g}-{max(v):.4g})" for v in values]
    ratio = ""
    if len(values) == 2:
        ratios = [ours / theirs for ours, theirs in zip(*values, strict=True)]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    every = [line for side in lines for line in side]
    done, asked = (sum(int(line[name]) for line in every) for name in ("completed", "num_prompts"))
    busiest = max(float(line["client_cpu_percent"]) for line in every)
    hits = [line["cache_hit_rate"] for line in lines[0] if line.get("cache_hit_rate") is not None]
    hit = f"{100 * statistics.median(hits):.0f} %" if hits else "-"
    return [workload.name, label, *cells, ratio, f"{busiest:.0f} %", f"{done}/{asked}", hit]


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Status 1 when a workload failed: the first that does ends the run."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    options: MatrixOptions = PROGRAM.read(argv)["matrix"]
    servers = ["radixlm", "peer"] if options.peer else ["radixlm"]
    heads = ["workload", "what", *servers, "ours / theirs", "client CPU at most", "done", "our cache hits"]
    text = table([heads, *run(options)])
    (options.out / "table.txt").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m radixlm.benchmark.gpu_matrix`: every GPU workload in one command, beside SGLang's numbers.

Makes model folders of the true shapes with dummy weights, starts a server for each model, runs the benchmark client
against it, and prints one table. A workload that fails costs its own row only, and the exit status is then 1. Knows no
tensor and no engine.
"""

import json
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, product
from pathlib import Path
from typing import Any

from radixlm.base.errors import RadixError
from radixlm.benchmark.launched import SERVE, ServerProcess
from radixlm.config.commandline import Program, command, made_folder
from radixlm.config.flags import REQUIRED, at_least, flag

VOCABULARY = 151_936
START_LIMIT_S = 300.0
WORKLOAD_LIMIT_S = 240.0

_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40_960,
    "rope_theta": 1_000_000,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "eos_token_id": 151_645,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3-8b": _QWEN3
    | {
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "qwen3-0.6b": _QWEN3
    | {
        "num_hidden_layers": 28,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
}


def random_ids(prompts: int, prompt_tokens: int, output_tokens: int, ratio: float, *more: str) -> tuple[str, ...]:
    """The client's options for prompts of random tokens; `ratio`: the least of the longest length."""
    return (
        *("--dataset-name", "random-ids", "--num-prompts", str(prompts)),
        *("--random-input-len", str(prompt_tokens), "--random-output-len", str(output_tokens)),
        *("--random-range-ratio", str(ratio), *more),
    )


_GSP = (
    *("--dataset-name", "generated-shared-prefix", "--gsp-num-groups", "32", "--gsp-prompts-per-group", "32"),
    *("--gsp-system-prompt-len", "2048", "--gsp-question-len", "128", "--gsp-output-len", "128"),
)
THROUGHPUT = (("total tok/s", "total_throughput"),)
LATENCY = (("TPOT ms", "median_tpot_ms"), ("TTFT ms", "median_ttft_ms"))


@dataclass(frozen=True)
class Workload:
    """`client`: the benchmark's options; `shown`: (label, key of its result); `peer`: SGLang 0.5.16's numbers."""

    name: str
    model: str
    client: tuple[str, ...]
    shown: tuple[tuple[str, str], ...]
    peer: str
    goal: str


ONE_AT_A_TIME = random_ids(8, 1024, 256, 1.0, "--max-concurrency", "1")

# SGLang's column: one H200 of the same kind, FlashAttention-3, CUDA graphs, radix cache, dummy weights, 2026-12-01.
WORKLOADS = (
    Workload("c1", "qwen3-8b", ONE_AT_A_TIME, LATENCY, "5.05 / 40", "4.2 / 26"),
    Workload(
        "c32",
        "qwen3-8b",
        random_ids(200, 1024, 256, 0.5, "--max-concurrency", "32"),
        (*THROUGHPUT, ("TTFT p50", "median_ttft_ms"), ("p90", "p90_ttft_ms"), ("p99", "p99_ttft_ms")),
        "15.4k / 52 / - / 664",
        "20k / - / 150 / 550",
    ),
    Workload("off", "qwen3-8b", random_ids(1000, 1024, 512, 0.5), THROUGHPUT, "20.5-20.9k", "28k"),
    Workload("gsp", "qwen3-8b", _GSP, (("s", "duration"), *THROUGHPUT), "32.5-38.5 / 64-76k", "18, then 12"),
    Workload("long", "qwen3-8b", random_ids(16, 32_000, 32, 1.0), THROUGHPUT, "23.3k", "27k"),
    Workload("rate", "qwen3-0.6b", random_ids(3000, 512, 128, 0.5), (("req/s", "request_throughput"),), "66", "250"),
    Workload("off-small", "qwen3-0.6b", random_ids(1000, 1024, 512, 0.5), THROUGHPUT, "25.0k", "70k"),
    Workload(
        "c1-small",
        "qwen3-0.6b",
        random_ids(8, 1024, 256, 1.0, "--max-concurrency", "1"),
        LATENCY,
        "1.95 / -",
        "1.1 / -",
    ),
)


def make_model(folder: Path, config: dict[str, Any], tokenizer: Path | None) -> Path:
    """A model folder without weights: config.json, and the tokenizer of folder `tokenizer` or one of made-up words."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        for file in tokenizer.glob("*.json"):
            if file.name != "config.json":
                shutil.copy(file, folder)
    elif not (folder / "tokenizer.json").exists():
        made_up_tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
    return folder


def made_up_tokenizer(size: int) -> Any:
    """A byte-level tokenizer with `size` entries: all bytes, then words of letters with a space before them."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    space = "\u0120"
    words = product(string.ascii_lowercase, repeat=4)
    names += [space + "".join(next(words)) for _ in range(size - len(names))]
    backend = tokenizers.Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


class Server(ServerProcess):
    """A server with dummy weights in the shapes of `model`."""

    def __init__(self, model: Path, flags: Sequence[str], log: Path, program: Sequence[str] = SERVE) -> None:
        words = [str(model), "--load-format", "dummy", "--enable-cache-report", *flags]
        super().__init__(words, log, START_LIMIT_S, program)


@contextmanager
def _closing(servers: list[Server]) -> Iterator[None]:
    try:
        yield
    finally:
        for server in servers:
            server.stop()


def run_client(workload: Workload, port: int, out: Path, more: Sequence[str]) -> dict[str, Any]:
    """One benchmark run; its JSON line. RadixError when it fails."""
    result = out / f"{workload.name}.jsonl"
    words = [sys.executable, "-m", "radixlm.benchmark.serving", "--port", str(port), "--host", "127.0.0.1"]
    words += [*workload.client, "--flush-cache", "--disable-tqdm", "--output-file", str(result), *more]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=WORKLOAD_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RadixError(f"not done within {WORKLOAD_LIMIT_S:.0f} s") from None
    (out / f"{workload.name}.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise RadixError((done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1])
    line: dict[str, Any] = json.loads(result.read_text().splitlines()[-1])
    return line


def row(workload: Workload, line: dict[str, Any]) -> list[str]:
    """A table row out of a client's result."""
    ours = " / ".join(_shown(float(line[key])) for _, key in workload.shown)
    hits = line.get("cache_hit_rate")
    return [
        workload.name,
        workload.model,
        " / ".join(label for label, _ in workload.shown),
        ours,
        workload.peer,
        workload.goal,
        f"{line['completed']}/{line['num_prompts']}",
        f"{line['client_cpu_percent']:.0f} %",
        "-" if hits is None else f"{100 * hits:.0f} %",
    ]


def _shown(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 10_000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


HEADS = ["workload", "model", "what", "ours", "SGLang 0.5.16", "goal", "done", "client CPU", "hits"]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns."""
    widths = [max(len(cells[i]) for cells in (HEADS, *rows)) for i in range(len(HEADS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in (HEADS, *rows)
    )


def split_words(text: str) -> tuple[str, ...]:
    """The words of a flag that takes several in one, as in --flags '--page-size 16'."""
    return tuple(text.split())


def tokenizer_folder(text: str) -> Path:
    """A folder with a tokenizer.json; ValueError when it is none."""
    folder = Path(text)
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"{text} is no folder with a tokenizer.json")
    return folder


_NAMES = tuple(workload.name for workload in WORKLOADS)


@dataclass(frozen=True)
class MatrixOptions:
    """What runs and where its files go."""

    out: Path = flag(REQUIRED, "folder for logs, results and the table")
    workloads: tuple[str, ...] = flag(_NAMES, "those that run", many=True, choices=_NAMES)
    models: Path = flag(Path("/tmp/radixlm-models"), "folder for model folders")
    tokenizer: Path | None = flag(
        None, "folder of a real tokenizer: prompts are then sent as text", parse=tokenizer_folder, metavar="FOLDER"
    )
    repeat: int = flag(1, "runs of each workload", check=at_least(1))
    flags: tuple[str, ...] = flag((), "more server flags, in one word", parse=split_words, metavar="FLAGS")


PROGRAM = Program(
    "radixlm.benchmark.gpu_matrix",
    "Every GPU workload in one command, beside SGLang's numbers.",
    {"matrix": MatrixOptions},
    family="python -m",
)


@dataclass
class Matrix:
    """The table's rows, and the runs that failed: `NAME #RUN`."""

    rows: list[list[str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def run(options: MatrixOptions) -> Matrix:
    """Every chosen workload, a server for each model (a new one where the last has died)."""
    out, models = made_folder(options.out, "--out"), made_folder(options.models, "--models")
    chosen = [workload for workload in WORKLOADS if workload.name in options.workloads]
    more = [] if options.tokenizer is not None else ["--tokenize-prompt", "--vocab-size", str(VOCABULARY)]
    found = Matrix()
    for model, workloads in groupby(chosen, key=lambda workload: workload.model):
        folder = make_model(models / model, MODELS[model], options.tokenizer)
        servers: list[Server] = []
        with _closing(servers):
            for workload, number in product(workloads, range(1, options.repeat + 1)):
                try:
                    if not servers or not servers[-1].alive:
                        servers.append(Server(folder, options.flags, out / f"server-{model}-{len(servers)}.log"))
                        print(f"{model}: ready after {servers[-1].started_s:.1f} s", flush=True)
                    found.rows.append(row(workload, run_client(workload, servers[-1].port, out, more)))
                except (RadixError, OSError, ValueError) as error:
                    what = ["failed", str(error)[:100]]
                    found.rows.append([workload.name, model, *what, workload.peer, workload.goal, *"---"])
                    found.failed.append(f"{workload.name} #{number}")
                print(f"{workload.name} #{number}: {' '.join(found.rows[-1][2:4])}", flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Status 1 when a workload failed."""
    return command(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    options: MatrixOptions = PROGRAM.read(argv)["matrix"]
    found = run(options)
    text = table(found.rows)
    (options.out / "table.txt").write_text(text + "\n")
    print(text)
    if found.failed:
        raise RadixError(f"{len(found.failed)} of {len(found.rows)} runs failed: {', '.join(found.failed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

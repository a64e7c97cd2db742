"""Prints what this machine's memory gives and what torch and the native kernels make of it; nothing imports this.

    python -m radixlm.kernels.native.bench [--hidden 576 --intermediate 1536 --q-heads 9 --kv-heads 3 --vocab 49152]

Every table alternates torch and native in one run and takes the fastest of many short repeats, so that a busy machine
disturbs both alike. Weights are cycled through more memory than the caches hold, as in a model.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from radixlm.kernels.native import elementwise
from radixlm.kernels.native.library import Library, library, why_not
from radixlm.kernels.native.linear import NativeLinear

CYCLE_BYTES = 128 << 20
Work = Callable[[], object]


def fastest_s(works: Sequence[Work], budget_s: float, calls: int = 1) -> list[float]:
    """The shortest time of each of `works`, which take turns until `budget_s` is over (three turns at least)."""
    best = [float("inf")] * len(works)
    for work in works:
        work()
    end = time.perf_counter() + budget_s
    turn = 0
    while turn < 3 or time.perf_counter() < end:
        for i, work in enumerate(works):
            begin = time.perf_counter()
            for _ in range(calls):
                work()
            best[i] = min(best[i], (time.perf_counter() - begin) / calls)
        turn += 1
    return best


def bandwidth(kernels: Library, budget_s: float) -> float:
    """Prints reading speed by threads; returns the fastest, in bytes per second."""
    memory = torch.ones(256 << 20, dtype=torch.uint8)
    threads = torch.get_num_threads()
    fastest = 0.0
    for count in sorted({1, threads}):
        torch.set_num_threads(count)
        seconds = fastest_s([lambda: kernels.read(memory.data_ptr(), memory.numel())], budget_s)[0]
        fastest = max(fastest, memory.numel() / seconds)
        print(f"reading memory, {count} thread{'s' * (count > 1)}: {memory.numel() / seconds / 1e9:.1f} GB/s")
    torch.set_num_threads(threads)
    return fastest


def linear_works(kernels: Library, out: int, width: int, rows: int, dtype: torch.dtype) -> tuple[list[Work], int]:
    """torch's, oneDNN's packed and our linear layer over a cycle of different weights, and how many these are."""
    copies = max(1, CYCLE_BYTES // (out * width * dtype.itemsize))
    copies = copies if rows <= 16 else min(copies, 4)
    weights = [torch.randn(out, width).to(dtype) for _ in range(copies)]
    reordered = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]
    packed = [NativeLinear(weight, None, kernels) for weight in weights]
    x = torch.randn(rows, width).to(dtype)
    onednn = torch.ops.mkldnn._linear_pointwise
    return [
        lambda: [F.linear(x, weight) for weight in weights],
        lambda: [onednn(x, weight, None, "none", [], "") for weight in reordered],
        lambda: [layer(x) for layer in packed],
    ], copies


def linear_table(
    kernels: Library, shapes: dict[str, tuple[int, int]], rows: list[int], dtype: torch.dtype, budget_s: float
) -> dict[str, float]:
    """Prints time, GB/s of weights and GFLOP/s; returns the native seconds of each shape at the first of `rows`."""
    print(f"\nlinear, {dtype}   us per call: torch, oneDNN packed, native | native GB/s of weights, GFLOP/s")
    first: dict[str, float] = {}
    for name, (out, width) in shapes.items():
        for count in rows:
            works, copies = linear_works(kernels, out, width, count, dtype)
            theirs, onednn, ours = (seconds / copies for seconds in fastest_s(works, budget_s))
            first.setdefault(name, ours)
            gigabytes, gigaflops = out * width * dtype.itemsize / 1e9, 2 * count * out * width / 1e9
            print(
                f"{name:8s} {out:6d}x{width:<5d} M={count:<4d} {theirs * 1e6:9.1f} {onednn * 1e6:9.1f}"
                f" {ours * 1e6:9.1f} | {gigabytes / ours:6.1f} GB/s {gigaflops / ours:7.1f} GFLOP/s"
            )
    return first


def elementwise_works(
    tokens: int, hidden: int, intermediate: int, heads: int, dtype: torch.dtype
) -> dict[str, list[Work]]:
    x, residual = torch.randn(tokens, hidden).to(dtype), torch.zeros(tokens, hidden, dtype=dtype)
    weight, gate_up = torch.ones(hidden, dtype=dtype), torch.randn(tokens, 2 * intermediate).to(dtype)
    q, angle = torch.randn(tokens, heads, 64).to(dtype), torch.rand(tokens, 1, 64)
    return {
        "rms_norm": [
            lambda: F.rms_norm(x, weight.shape, weight, 1e-5),
            lambda: elementwise.rms_norm(x, weight, 1e-5),
        ],
        "add_rms_norm": [
            lambda: F.rms_norm(residual.add_(x), weight.shape, weight, 1e-5),
            lambda: elementwise.add_rms_norm(x, residual, weight, 1e-5),
        ],
        "rotary": [
            lambda: torch.addcmul(q * angle, q.roll(32, -1), angle).to(dtype),
            lambda: elementwise.rotary(q, angle, angle),
        ],
        "silu_mul": [
            lambda: F.silu(gate_up[:, :intermediate]).mul_(gate_up[:, intermediate:]),
            lambda: elementwise.gate_mul(gate_up),
        ],
    }


def elementwise_table(hidden: int, intermediate: int, heads: int, dtype: torch.dtype, budget_s: float) -> None:
    print(f"\nelementwise, {dtype}   us per call: torch, native")
    for tokens in (1, 16, 512):
        for name, works in elementwise_works(tokens, hidden, intermediate, heads, dtype).items():
            theirs, ours = fastest_s(works, budget_s / 2, calls=20)
            print(f"{name:12s} T={tokens:<4d} {theirs * 1e6:8.1f} {ours * 1e6:8.1f}")


def decode_bound(
    layers: int, shapes: dict[str, tuple[int, int]], measured: dict[str, float], dtype: torch.dtype, bytes_per_s: float
) -> None:
    """Prints the linear layers' share of a one-row step beside the time that reading the weights must take."""
    times = {name: 1 if name == "head" else layers for name in shapes}
    weight_bytes = sum(times[name] * out * width * dtype.itemsize for name, (out, width) in shapes.items())
    limit_s = weight_bytes / bytes_per_s
    linear_s = sum(times[name] * measured[name] for name in shapes)
    print(
        f"\none row through {layers} layers: {weight_bytes / 1e6:.0f} MB of weights, read in {limit_s * 1e3:.1f} ms; "
        f"linear layers {linear_s * 1e3:.1f} ms ({linear_s / limit_s:.2f} times that)"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="torch against the native CPU kernels; the defaults are SmolLM2-135M")
    for name, value in (("hidden", 576), ("intermediate", 1536), ("q-heads", 9), ("kv-heads", 3), ("head-dim", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 512])
    parser.add_argument("--budget-s", type=float, default=0.6, help="time for each line of a table")
    return parser.parse_args()


def shapes_of(args: argparse.Namespace) -> dict[str, tuple[int, int]]:
    heads = args.q_heads * args.head_dim
    return {
        "qkv": (heads + 2 * args.kv_heads * args.head_dim, args.hidden),
        "o": (args.hidden, heads),
        "gate_up": (2 * args.intermediate, args.hidden),
        "down": (args.hidden, args.intermediate),
        "head": (args.vocab, args.hidden),
    }


def main() -> int:
    args = parse()
    kernels = library()
    if kernels is None:
        print(f"no native kernels here: {why_not()}")
        return 1
    torch.set_grad_enabled(False)
    dtype: torch.dtype = getattr(torch, args.dtype)
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{torch.get_num_threads()} threads, load average {load}")
    bytes_per_s = bandwidth(kernels, args.budget_s)
    shapes = shapes_of(args)
    measured = linear_table(kernels, shapes, args.rows, dtype, args.budget_s)
    elementwise_table(args.hidden, args.intermediate, args.q_heads + args.kv_heads, dtype, args.budget_s)
    if args.rows[0] == 1:
        decode_bound(args.layers, shapes, measured, dtype, bytes_per_s)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

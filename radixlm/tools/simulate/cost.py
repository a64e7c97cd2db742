"""What a step costs on one machine, as a sum of non-negative parts fitted to measured steps. Runs nothing."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from radixlm.base.errors import ConfigError
from radixlm.protocol.plan import SAMPLE, StepPlan

F64 = NDArray[np.float64]
# Between two of these numbers of tokens a step's time is a straight line: weights are read once however few tokens
# there are, and from some number on arithmetic decides.
GRID = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_PER_TOKEN = (*(f"token_{low}_{high}" for low, high in pairwise(GRID)), "token_more")
PARTS = ("step", *_PER_TOKEN, "sampled", "chunk", "decode_key", "chunk_key")
ROUNDS = 3  # of fitting again without the worst measurements
WORST_SHARE = 0.05
DESCENT_ROUNDS = 4000


class Machine(msgspec.Struct, frozen=True):
    """The engine that was measured: what a simulation takes where it is not told otherwise."""

    model: str
    device: str
    dtype: str
    pool_tokens: int
    page_size: int
    chunk_tokens: int
    context_tokens: int
    max_running: int
    run_ahead: int


class StepCost(msgspec.Struct, frozen=True):
    """Seconds per unit of each of PARTS. `median_error` and `p90_error` are relative, over the measured steps."""

    machine: Machine
    seconds: dict[str, float]
    measured_steps: int
    median_error: float
    p90_error: float

    def coefficients(self) -> F64:
        return np.array([self.seconds.get(name, 0.0) for name in PARTS])

    def save(self, path: str) -> None:
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @staticmethod
    def load(path: str) -> "StepCost":
        """ConfigError when there is no such file, or it is none of `save`."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=StepCost)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path} is not a cost file: {error}") from None


def units(plan: StepPlan) -> F64:
    """How many units of each of PARTS a step has; float64 [len(PARTS)].

    A decode key is a cached token that a decode row reads; a chunk key is one that one token of a chunk reads.
    """
    rows = plan.decode_rows
    counts, starts = plan.counts[rows:].astype(np.float64), plan.starts[rows:].astype(np.float64)
    tokens = rows + float(counts.sum())
    found = np.empty(len(PARTS))
    found[0] = 1.0
    found[1 : len(GRID)] = np.clip(tokens - _LOWS, 0.0, _WIDTHS)
    found[len(GRID)] = max(tokens - GRID[-1], 0.0)
    found[len(GRID) + 1] = np.count_nonzero(plan.flags & SAMPLE)
    found[len(GRID) + 2] = len(counts)
    found[len(GRID) + 3] = float(plan.starts[:rows].sum()) + rows
    found[len(GRID) + 4] = float((counts * starts + counts * (counts + 1) / 2).sum())
    return found


_LOWS = np.array(GRID[:-1], np.float64)
_WIDTHS = np.diff(np.array(GRID, np.float64))


def fit(machine: Machine, steps: Sequence[F64], seconds: Sequence[float]) -> StepCost:
    """The costs that come closest to measured steps (their `units` and seconds), by relative error.

    The slowest outliers, where somebody else had the machine, are left out.
    """
    amounts, taken = np.array(steps), np.array(seconds)
    kept = np.ones(len(taken), np.bool_)
    found = np.zeros(len(PARTS))
    for _ in range(ROUNDS):
        found = _non_negative(amounts[kept] / taken[kept, None], np.ones(int(kept.sum())))
        error = taken / np.maximum(amounts @ found, 1e-9) - 1
        kept = error <= np.quantile(error, 1 - WORST_SHARE)
    wrong = np.abs(error[kept])
    named = {name: float(value) for name, value in zip(PARTS, found, strict=True) if value > 0}
    return StepCost(machine, named, len(taken), float(np.median(wrong)), float(np.quantile(wrong, 0.9)))


def _non_negative(matrix: F64, target: F64) -> F64:
    """The non-negative x with the least |matrix @ x - target|, by coordinate descent."""
    scale = np.sqrt((matrix**2).sum(axis=0))
    used = np.flatnonzero(scale > 0)
    scaled = matrix[:, used] / scale[used]
    gram, aim = scaled.T @ scaled, scaled.T @ target
    x = np.zeros(len(used))
    for _ in range(DESCENT_ROUNDS):
        for column in range(len(used)):
            x[column] = max(0.0, x[column] + aim[column] - float(gram[column] @ x))
    found = np.zeros(matrix.shape[1])
    found[used] = x / scale[used]
    return found


def describe(cost: StepCost) -> dict[str, Any]:
    """The fit in a few numbers: what steps of some shapes take, in milliseconds."""
    shapes = {"decode 1 row": (1, 256, 0), "decode 16 rows": (16, 256, 0), "chunk of 512": (0, 0, 512)}
    return {name: round(float(_shape(*shape) @ cost.coefficients()) * 1e3, 2) for name, shape in shapes.items()}


def _shape(rows: int, context: int, chunk: int) -> F64:
    counts = np.array([1] * rows + [chunk] * (chunk > 0), np.int32)
    starts = np.array([context] * rows + [0] * (chunk > 0), np.int32)
    flags = np.full(len(counts), SAMPLE, np.int32)
    none = np.zeros(0, np.int32)
    return units(StepPlan(0, rows, starts, starts, counts, flags, none, none, none, []))

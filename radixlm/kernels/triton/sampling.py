"""One token per row out of logits, without a sort and without asking the host. Knows tensors only.

The reference is `kernels.sampling.sample_rows_reference`. Which tokens a row keeps is a matter of one threshold on its
logits. So the best p / e over all tokens is drawn first; where it lies under the threshold, the range in which the
threshold can be is narrowed and the draw repeated over the tokens above its lower end, until the winner is one that is
kept. (Rejection as in FlashInfer's samplers, arXiv 2501.01005; but the noise is a function of seed, position and column,
so that the answer does not depend on the way.)
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixlm.kernels.triton.device import device_of

SCAN_BLOCK = 1024
MAX_SPLITS = 64
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
MIX_1: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9)
MIX_2: tl.constexpr = tl.constexpr(0x94D049BB133111EB)
NO_COLUMN: tl.constexpr = tl.constexpr(2147483647)


def sample_rows(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    greedy: Tensor,
    not_finite: int,
) -> Tensor:
    """`radixlm.kernels.sampling.sample_rows` for logits [L, V] whose rows are contiguous."""
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows == 0:
        return tokens
    wanted = device_of(logits.device).multiprocessors * 8 // rows
    splits = max(1, min(MAX_SPLITS, wanted, vocab // (4 * SCAN_BLOCK)))
    scores = torch.empty((rows, splits, 3), dtype=torch.float32, device=logits.device)
    columns = torch.empty((rows, splits, 2), dtype=torch.int32, device=logits.device)
    _scan[(splits, rows)](
        logits, temperature, seeds, positions, greedy, scores, columns,
        logits.stride(0), vocab, splits, BLOCK=SCAN_BLOCK, num_warps=4,
    )  # fmt: skip
    _choose[(rows,)](
        logits, temperature, top_k, top_p, min_p, seeds, positions, greedy, scores, columns, tokens,
        logits.stride(0), vocab, splits, not_finite, MAX_SPLITS=MAX_SPLITS, BLOCK=4096, num_warps=16,
    )  # fmt: skip
    return tokens


@triton.jit
def _mix(x):
    """The splitmix64 finalizer, as in the reference."""
    x = (x ^ (x >> 30)) * MIX_1
    x = (x ^ (x >> 27)) * MIX_2
    return x ^ (x >> 31)


@triton.jit
def _stream(seed, position):
    """The state from which a row's noise at one position is made."""
    return _mix(_mix(seed.to(tl.uint64) + GOLDEN) + position.to(tl.uint64) * GOLDEN)


@triton.jit
def _log_noise(stream, column):
    """ln(e), e standard exponential noise. 1 - u is kept exact, since a small e, which wins, comes from u near 1."""
    bits = (_mix(stream + column.to(tl.uint64) * GOLDEN) >> 41).to(tl.int32)
    unit: tl.constexpr = 1.0 / 8388608.0
    u = (bits.to(tl.float32) + 0.5) * unit
    z = ((8388608 - bits).to(tl.float32) - 0.5) * unit / (1.0 + u)
    square = z * z
    near_one = 2.0 * z * (1.0 + square * (1.0 / 3 + square * (1.0 / 5 + square * (1.0 / 7 + square * (1.0 / 9)))))
    return tl.log(tl.where(u > 0.75, near_one, -tl.log(u)))


@triton.jit(
    do_not_specialize=["vocab", "splits"],
    do_not_specialize_on_alignment=["temperature", "seeds", "positions", "greedy"],
)
def _scan(
    logits, temperature, seeds, positions, greedy, scores, columns,
    stride, vocab, splits, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest logit and the best noisy one of a stretch of a row.

    Leaves in scores: largest logit (+inf for NaN), best noisy score, the logit it came from; in columns: theirs.
    """
    split, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    share = tl.cdiv(tl.cdiv(vocab, splits), BLOCK) * BLOCK
    begin = split * share
    stop = tl.minimum(begin + share, vocab)
    lane = tl.arange(0, BLOCK)
    noisy = tl.load(greedy + row) == 0
    rate = 1.0 / tl.load(temperature + row)
    stream = _stream(tl.load(seeds + row), tl.load(positions + row))
    high = tl.full([BLOCK], float("-inf"), tl.float32)
    high_column = tl.full([BLOCK], NO_COLUMN, tl.int32)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_logit = tl.full([BLOCK], float("-inf"), tl.float32)
    best_column = tl.full([BLOCK], NO_COLUMN, tl.int32)
    for at in tl.range(begin, stop, BLOCK, num_stages=3):
        column = at + lane
        x = tl.load(logits + row * stride + column, mask=column < vocab, other=float("-inf")).to(tl.float32)
        x = tl.where(x == x, x, float("inf"))
        higher = x > high
        high = tl.where(higher, x, high)
        high_column = tl.where(higher, column, high_column)
        if noisy:
            score = x * rate - _log_noise(stream, column)
            better = score > best
            best = tl.where(better, score, best)
            best_logit = tl.where(better, x, best_logit)
            best_column = tl.where(better, column, best_column)
    part = row * splits + split
    score, column, _ = _best(high, high_column, high)
    tl.store(scores + part * 3, score)
    tl.store(columns + part * 2, column)
    score, column, logit = _best(best, best_column, best_logit)
    tl.store(scores + part * 3 + 1, score)
    tl.store(scores + part * 3 + 2, logit)
    tl.store(columns + part * 2 + 1, column)


@triton.jit
def _best(score, column, logit):
    """The highest score, its column (the lowest of equals) and its logit."""
    best = tl.max(score, 0)
    first = tl.min(tl.where(score == best, column, NO_COLUMN), 0)
    return best, first, tl.max(tl.where(column == first, logit, float("-inf")), 0)


@triton.jit(
    do_not_specialize=["vocab", "splits", "not_finite"],
    do_not_specialize_on_alignment=["temperature", "top_k", "top_p", "min_p", "seeds", "positions", "greedy", "tokens"],
)
def _choose(
    logits, temperature, top_k, top_p, min_p, seeds, positions, greedy, scores, columns, tokens,
    stride, vocab, splits, not_finite, MAX_SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, MAX_SPLITS)
    mask = part < splits
    at = row * splits + part
    highs = tl.load(scores + at * 3, mask=mask, other=float("-inf"))
    high, first, _ = _best(highs, tl.load(columns + at * 2, mask=mask, other=NO_COLUMN), highs)
    column = first
    if (tl.load(greedy + row) == 0) & (high < float("inf")):
        _, column, x = _best(
            tl.load(scores + at * 3 + 1, mask=mask, other=float("-inf")),
            tl.load(columns + at * 2 + 1, mask=mask, other=NO_COLUMN),
            tl.load(scores + at * 3 + 2, mask=mask, other=float("-inf")),
        )
        k, p, least = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
        if (k < vocab) | (p < 1.0) | (least > 0.0):
            stream = _stream(tl.load(seeds + row), tl.load(positions + row))
            rate = 1.0 / tl.load(temperature + row)
            column = _kept_winner(logits + row * stride, vocab, rate, k, p, least, stream, high, x, column, BLOCK)
    token = tl.where(high == float("-inf"), 0, column).to(tl.int64)
    tl.store(tokens + row, tl.where(high == float("inf"), not_finite, token))


@triton.jit
def _kept_winner(logits, vocab, rate, k, p, least, stream, high, x, column, BLOCK: tl.constexpr):
    """The column of the best noisy logit among the kept ones; x, column: the best among all.

    Between rounds: no logit up to `low` is kept, every one from `sure` up is, and x is the best above `low`.
    """
    lane = tl.arange(0, BLOCK)
    sure = high
    searching = x < sure
    while searching:
        # Would a logit of value x, or of one of three more between x and `sure`, be kept? Each tells by the number
        # and the probability of the logits above it.
        step = (sure - x) * 0.25
        v1, v2, v3 = x + step, x + 2 * step, x + 3 * step
        n0, n1 = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
        n2, n3 = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
        p0, p1 = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        p2, p3 = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        whole = tl.zeros([BLOCK], tl.float32)
        for at in tl.range(0, vocab, BLOCK, num_stages=3):
            value = tl.load(logits + at + lane, mask=at + lane < vocab, other=float("-inf")).to(tl.float32)
            prob = tl.exp2((value - high) * (rate * LOG2_E))
            whole += prob
            n0 += (value > x).to(tl.int32)
            n1 += (value > v1).to(tl.int32)
            n2 += (value > v2).to(tl.int32)
            n3 += (value > v3).to(tl.int32)
            p0 += tl.where(value > x, prob, 0.0)
            p1 += tl.where(value > v1, prob, 0.0)
            p2 += tl.where(value > v2, prob, 0.0)
            p3 += tl.where(value > v3, prob, 0.0)
        most = p * tl.sum(whole, 0)
        kept = (tl.sum(n0, 0) < k) & (tl.sum(p0, 0) <= most) & _likely(x, high, rate, least)
        kept1 = (tl.sum(n1, 0) < k) & (tl.sum(p1, 0) <= most) & _likely(v1, high, rate, least)
        kept2 = (tl.sum(n2, 0) < k) & (tl.sum(p2, 0) <= most) & _likely(v2, high, rate, least)
        kept3 = (tl.sum(n3, 0) < k) & (tl.sum(p3, 0) <= most) & _likely(v3, high, rate, least)
        low = tl.where(kept1, x, tl.where(kept2, v1, tl.where(kept3, v2, v3)))
        sure = tl.where(kept1, v1, tl.where(kept2, v2, tl.where(kept3, v3, sure)))
        if kept:
            searching = False
        else:
            x, column = _best_above(logits, vocab, rate, stream, low, BLOCK)
            searching = x < sure
    return column


@triton.jit
def _likely(value, high, rate, least):
    return tl.exp2((value - high) * (rate * LOG2_E)) >= least


@triton.jit
def _best_above(logits, vocab, rate, stream, low, BLOCK: tl.constexpr):
    """The logit and column of the best noisy logit above `low`."""
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_logit = tl.full([BLOCK], float("-inf"), tl.float32)
    best_column = tl.full([BLOCK], NO_COLUMN, tl.int32)
    for at in tl.range(0, vocab, BLOCK, num_stages=3):
        column = at + lane
        value = tl.load(logits + column, mask=column < vocab, other=float("-inf")).to(tl.float32)
        if tl.max(value, 0) > low:
            score = tl.where(value > low, value * rate - _log_noise(stream, column), float("-inf"))
            better = score > best
            best = tl.where(better, score, best)
            best_logit = tl.where(better, value, best_logit)
            best_column = tl.where(better, column, best_column)
    _, column, x = _best(best, best_column, best_logit)
    return x, column

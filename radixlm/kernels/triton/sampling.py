"""One token per row out of logits, without a sort and without asking the host. Knows tensors only.

The reference is `kernels.sampling.sample_rows_reference`. Which tokens a row keeps is a matter of one threshold on its
logits. So the best p / e over all tokens is drawn first; where it lies under the threshold, the range in which the
threshold can be is narrowed and the draw repeated over the tokens above its lower end, until the winner is one that is
kept. (Rejection as in FlashInfer, arXiv 2501.01005; but the noise is a function of seed, position and column, so that
the answer does not depend on the way.) The first draw and its check are spread over the device, the rest is one
program's: with usual filters few rows get there.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_COLUMNS = 2048
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
    splits = splits_of(vocab)
    scores = torch.empty((rows, splits, 2), dtype=torch.float32, device=logits.device)
    columns = torch.empty((rows, splits, 2), dtype=torch.int32, device=logits.device)
    tallies = torch.empty((rows, splits, 3), dtype=torch.float32, device=logits.device)
    stride = logits.stride(0)
    _scan[(splits, rows)](
        logits, temperature, seeds, positions, greedy, scores, columns, stride, vocab, splits,
        BLOCK=BLOCK_COLUMNS, num_warps=8,
    )  # fmt: skip
    _check[(splits, rows)](
        logits, temperature, top_k, top_p, min_p, greedy, scores, columns, tallies, stride, vocab, splits,
        MAX_SPLITS=MAX_SPLITS, BLOCK=BLOCK_COLUMNS, num_warps=4,
    )  # fmt: skip
    _choose[(rows,)](
        logits, temperature, top_k, top_p, min_p, seeds, positions, greedy, scores, columns, tallies, tokens,
        stride, vocab, splits, not_finite, MAX_SPLITS=MAX_SPLITS, BLOCK=BLOCK_COLUMNS, num_warps=16,
    )  # fmt: skip
    return tokens


def splits_of(vocab: int) -> int:
    """Into how many stretches a row is cut; not fewer for more rows, on which the order of sums would then depend."""
    return max(1, min(MAX_SPLITS, vocab // (2 * BLOCK_COLUMNS)))


@triton.jit
def stretch(split, vocab, splits, BLOCK: tl.constexpr):
    """The first column of a row's stretch, and one past its last; none where there are more stretches than blocks."""
    share = tl.cdiv(tl.cdiv(vocab, splits), BLOCK) * BLOCK
    return split * share, tl.minimum(split * share + share, vocab)


@triton.jit
def _mix(x):
    """The splitmix64 finalizer, as in the reference."""
    x = (x ^ (x >> 30)) * MIX_1
    x = (x ^ (x >> 27)) * MIX_2
    return x ^ (x >> 31)


@triton.jit
def _stream(seed, position):
    """The 64 bits from which a row's noise at one position is made."""
    return _mix(_mix(seed.to(tl.uint64) + GOLDEN) + position.to(tl.uint64) * GOLDEN)


@triton.jit
def _log_noise(stream, column):
    """ln(e), e the reference's exponential noise. A small e, which wins, comes from u near 1: there 1 - u is exact."""
    x = column.to(tl.uint32) * 0x9E3779B9 + stream.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15) ^ (stream >> 32).to(tl.uint32)) * 0x735A2D97
    u = (((x ^ (x >> 15)) >> 9).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / 8388608.0)
    w = 1.0 - u
    near_one = w * (1.0 + w * (0.5 + w * (1.0 / 3 + w * (0.25 + w * 0.2))))
    return tl.log(tl.where(w < 0.0625, near_one, -tl.log(u)))


@triton.jit
def _best(score, column):
    """The highest score, and the lowest column that has it."""
    best = tl.max(score, 0)
    return best, tl.min(tl.where(score == best, column, NO_COLUMN), 0)


@triton.jit(
    do_not_specialize=["splits"],
    do_not_specialize_on_alignment=["temperature", "seeds", "positions", "greedy"],
)
def _scan(
    logits, temperature, seeds, positions, greedy, scores, columns, stride, vocab, splits, BLOCK: tl.constexpr
):  # fmt: skip
    """Of a stretch of a row, leave the largest logit (+inf for NaN) and the best noisy one, and their columns."""
    split, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    begin, stop = stretch(split, vocab, splits, BLOCK)
    lane = tl.arange(0, BLOCK)
    high = tl.full([BLOCK], float("-inf"), tl.float32)
    high_column = tl.full([BLOCK], NO_COLUMN, tl.int32)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_column = tl.full([BLOCK], NO_COLUMN, tl.int32)
    logits += row * stride
    if tl.load(greedy + row) != 0:
        for at in tl.range(begin, stop, BLOCK, num_stages=2):
            x = tl.load(logits + at + lane, mask=at + lane < vocab, other=float("-inf")).to(tl.float32)
            x = tl.where(x == x, x, float("inf"))
            higher = x > high
            high = tl.where(higher, x, high)
            high_column = tl.where(higher, at + lane, high_column)
    else:
        rate = 1.0 / tl.load(temperature + row)
        stream = _stream(tl.load(seeds + row), tl.load(positions + row))
        for at in tl.range(begin, stop, BLOCK, num_stages=2):
            x = tl.load(logits + at + lane, mask=at + lane < vocab, other=float("-inf")).to(tl.float32)
            x = tl.where(x == x, x, float("inf"))
            high = tl.maximum(high, x)
            score = x * rate - _log_noise(stream, at + lane)
            better = score > best
            best = tl.where(better, score, best)
            best_column = tl.where(better, at + lane, best_column)
    part = (row * splits + split) * 2
    score, column = _best(high, high_column)
    tl.store(scores + part, score)
    tl.store(columns + part, column)
    score, column = _best(best, best_column)
    tl.store(scores + part + 1, score)
    tl.store(columns + part + 1, column)


@triton.jit
def _scanned(scores, columns, row, splits, which: tl.constexpr, MAX_SPLITS: tl.constexpr):
    """What the stretches of a row come to: the highest score and its column."""
    part = tl.arange(0, MAX_SPLITS)
    at = (row * splits + part) * 2 + which
    score = tl.load(scores + at, mask=part < splits, other=float("-inf"))
    return _best(score, tl.load(columns + at, mask=part < splits, other=NO_COLUMN))


@triton.jit
def _asks(row, vocab, greedy, top_k, top_p, min_p, high):
    """Whether a row's winner must be checked: it has a filter, and logits to sample from."""
    filtered = (tl.load(top_k + row) < vocab) | (tl.load(top_p + row) < 1.0) | (tl.load(min_p + row) > 0.0)
    return filtered & (tl.load(greedy + row) == 0) & (high < float("inf")) & (high > float("-inf"))


@triton.jit(
    do_not_specialize=["splits"],
    do_not_specialize_on_alignment=["temperature", "top_k", "top_p", "min_p", "greedy"],
)
def _check(
    logits, temperature, top_k, top_p, min_p, greedy, scores, columns, tallies, stride, vocab, splits,
    MAX_SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a stretch of a row, count the logits above the winner, and weigh them and all."""
    split, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    high, _first = _scanned(scores, columns, row, splits, 0, MAX_SPLITS)
    if _asks(row, vocab, greedy, top_k, top_p, min_p, high):
        _score, column = _scanned(scores, columns, row, splits, 1, MAX_SPLITS)
        logits += row * stride
        x = tl.load(logits + column).to(tl.float32)
        rate = LOG2_E / tl.load(temperature + row)
        begin, stop = stretch(split, vocab, splits, BLOCK)
        lane = tl.arange(0, BLOCK)
        number = tl.zeros([BLOCK], tl.float32)
        weight = tl.zeros([BLOCK], tl.float32)
        whole = tl.zeros([BLOCK], tl.float32)
        for at in tl.range(begin, stop, BLOCK, num_stages=2):
            value = tl.load(logits + at + lane, mask=at + lane < vocab, other=float("-inf")).to(tl.float32)
            prob = tl.exp2((value - high) * rate)
            whole += prob
            number += tl.where(value > x, 1.0, 0.0)
            weight += tl.where(value > x, prob, 0.0)
        part = tallies + (row * splits + split) * 3
        tl.store(part, tl.sum(number, 0))
        tl.store(part + 1, tl.sum(weight, 0))
        tl.store(part + 2, tl.sum(whole, 0))


@triton.jit(
    do_not_specialize=["splits", "not_finite"],
    do_not_specialize_on_alignment=["temperature", "top_k", "top_p", "min_p", "seeds", "positions", "greedy", "tokens"],
)
def _choose(
    logits, temperature, top_k, top_p, min_p, seeds, positions, greedy, scores, columns, tallies, tokens,
    stride, vocab, splits, not_finite, MAX_SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token of a row, narrowing its threshold where the winner of all is not kept."""
    row = tl.program_id(0).to(tl.int64)
    high, first = _scanned(scores, columns, row, splits, 0, MAX_SPLITS)
    _score, best = _scanned(scores, columns, row, splits, 1, MAX_SPLITS)
    column = tl.where(tl.load(greedy + row) != 0, first, best)
    if _asks(row, vocab, greedy, top_k, top_p, min_p, high):
        part = tl.arange(0, MAX_SPLITS)
        at = tallies + (row * splits + part) * 3
        mask = part < splits
        number = tl.sum(tl.load(at, mask=mask, other=0.0), 0)
        weight = tl.sum(tl.load(at + 1, mask=mask, other=0.0), 0)
        k = tl.load(top_k + row).to(tl.float32)
        most = tl.load(top_p + row) * tl.sum(tl.load(at + 2, mask=mask, other=0.0), 0)
        rate = 1.0 / tl.load(temperature + row)
        least = tl.load(min_p + row)
        x = tl.load(logits + row * stride + column).to(tl.float32)
        if not _kept(x, high, number, weight, rate, k, most, least):
            stream = _stream(tl.load(seeds + row), tl.load(positions + row))
            column = _narrow(logits + row * stride, vocab, x, high, rate, k, most, least, stream, BLOCK)
    token = tl.where(high == float("-inf"), 0, column).to(tl.int64)
    tl.store(tokens + row, tl.where(high == float("inf"), not_finite, token))


@triton.jit
def _kept(value, high, number, weight, rate, k, most, least):
    """Whether a logit is kept that has so many above it, of so much weight; weights are relative to the largest's."""
    return (number < k) & (weight <= most) & (tl.exp2((value - high) * (rate * LOG2_E)) >= least)


@triton.jit
def _narrow(logits, vocab, x, high, rate, k, most, least, stream, BLOCK: tl.constexpr):
    """The column of the best noisy logit among the kept ones; x is not one of them.

    Between rounds: no logit up to `low` is kept, and every one from `sure` up is.
    """
    lane = tl.arange(0, BLOCK)
    low, sure = x, high
    column = 0
    searching = True
    while searching:
        # Would a logit of one of three values between `low` and `sure` be kept?
        step = (sure - low) * 0.25
        v1, v2, v3 = low + step, low + 2 * step, low + 3 * step
        n1, n2, n3 = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        p1, p2, p3 = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        for at in tl.range(0, vocab, BLOCK, num_stages=3):
            value = tl.load(logits + at + lane, mask=at + lane < vocab, other=float("-inf")).to(tl.float32)
            prob = tl.exp2((value - high) * (rate * LOG2_E))
            n1 += tl.where(value > v1, 1.0, 0.0)
            n2 += tl.where(value > v2, 1.0, 0.0)
            n3 += tl.where(value > v3, 1.0, 0.0)
            p1 += tl.where(value > v1, prob, 0.0)
            p2 += tl.where(value > v2, prob, 0.0)
            p3 += tl.where(value > v3, prob, 0.0)
        kept1 = _kept(v1, high, tl.sum(n1, 0), tl.sum(p1, 0), rate, k, most, least)
        kept2 = _kept(v2, high, tl.sum(n2, 0), tl.sum(p2, 0), rate, k, most, least)
        kept3 = _kept(v3, high, tl.sum(n3, 0), tl.sum(p3, 0), rate, k, most, least)
        low = tl.where(kept1, low, tl.where(kept2, v1, tl.where(kept3, v2, v3)))
        sure = tl.where(kept1, v1, tl.where(kept2, v2, tl.where(kept3, v3, sure)))
        column = _best_above(logits, vocab, rate, stream, low, BLOCK)
        x = tl.load(logits + column).to(tl.float32)
        searching = x < sure
        if searching:
            number, weight = _above(logits, vocab, x, high, rate, BLOCK)
            if _kept(x, high, number, weight, rate, k, most, least):
                searching = False
            else:
                low = x
    return column


@triton.jit
def _above(logits, vocab, x, high, rate, BLOCK: tl.constexpr):
    """How many logits lie above x, and their weight."""
    lane = tl.arange(0, BLOCK)
    number = tl.zeros([BLOCK], tl.float32)
    weight = tl.zeros([BLOCK], tl.float32)
    for at in tl.range(0, vocab, BLOCK, num_stages=3):
        value = tl.load(logits + at + lane, mask=at + lane < vocab, other=float("-inf")).to(tl.float32)
        number += tl.where(value > x, 1.0, 0.0)
        weight += tl.where(value > x, tl.exp2((value - high) * (rate * LOG2_E)), 0.0)
    return tl.sum(number, 0), tl.sum(weight, 0)


@triton.jit
def _best_above(logits, vocab, rate, stream, low, BLOCK: tl.constexpr):
    """The column of the best noisy logit above `low`."""
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_column = tl.full([BLOCK], NO_COLUMN, tl.int32)
    for at in tl.range(0, vocab, BLOCK, num_stages=3):
        column = at + lane
        value = tl.load(logits + column, mask=column < vocab, other=float("-inf")).to(tl.float32)
        if tl.max(value, 0) > low:
            score = tl.where(value > low, value * rate - _log_noise(stream, column), float("-inf"))
            better = score > best
            best = tl.where(better, score, best)
            best_column = tl.where(better, column, best_column)
    _score, column = _best(best, best_column)
    return column

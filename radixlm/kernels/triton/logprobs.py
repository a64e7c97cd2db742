"""The logarithm of each row's sum of exponentials, read once in its own dtype. Knows tensors only."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from radixlm.kernels.triton.sampling import BLOCK_COLUMNS, LOG2_E, MAX_SPLITS, splits_of, stretch

LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


def log_sums(logits: Tensor) -> Tensor:
    """`radixlm.kernels.logprobs.log_sums` for logits [L, V] whose rows are contiguous."""
    rows, vocab = logits.shape
    splits = splits_of(vocab)
    parts = torch.empty((rows, splits), dtype=torch.float32, device=logits.device)
    sums = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        _sum_parts[(splits, rows)](logits, parts, logits.stride(0), vocab, splits, BLOCK=BLOCK_COLUMNS, num_warps=8)
        _sum_rows[(rows,)](parts, sums, splits, MAX_SPLITS=MAX_SPLITS, num_warps=1)
    return sums


@triton.jit(do_not_specialize=["splits"])
def _sum_parts(logits, parts, stride, vocab, splits, BLOCK: tl.constexpr):
    """The base-2 logarithm of a stretch's sum."""
    split, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    begin, stop = stretch(split, vocab, splits, BLOCK)
    lane = tl.arange(0, BLOCK)
    high = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    logits += row * stride
    for at in tl.range(begin, stop, BLOCK, num_stages=2):
        x = tl.load(logits + at + lane, mask=at + lane < vocab, other=float("-inf")).to(tl.float32) * LOG2_E
        higher = tl.maximum(high, x)
        base = _finite(higher)
        total = total * tl.exp2(high - base) + tl.exp2(x - base)
        high = higher
    tl.store(parts + row * splits + split, _log_sum(high, total))


@triton.jit(do_not_specialize=["splits"])
def _sum_rows(parts, sums, splits, MAX_SPLITS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, MAX_SPLITS)
    high = tl.load(parts + row * splits + part, mask=part < splits, other=float("-inf"))
    tl.store(sums + row, _log_sum(high, tl.full([MAX_SPLITS], 1.0, tl.float32)) * LN_2)


@triton.jit
def _finite(x):
    """0 in place of what could not be subtracted from itself."""
    return tl.where(tl.abs(x) == float("inf"), 0.0, x)


@triton.jit
def _log_sum(high, total):
    """log2 of the sum of total * 2**high over all lanes."""
    base = _finite(tl.max(high, 0))
    return base + tl.log2(tl.sum(total * tl.exp2(high - base), 0))

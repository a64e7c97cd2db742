"""Penalties in one pass over the logits of the rows that have them. Knows tensors only."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK_COLUMNS = 2048


def apply_penalties(
    logits: Tensor, where: Tensor, table: Tensor, seen: Tensor, counts: Tensor, factors: Tensor
) -> None:
    """`radixlm.kernels.sampling.apply_penalties` for tensors whose rows are contiguous."""
    rows, vocab = len(where), logits.shape[1]
    if rows:
        _penalize[(triton.cdiv(vocab, BLOCK_COLUMNS), rows)](
            logits, where, table, seen, counts, factors, logits.stride(0), vocab, BLOCK=BLOCK_COLUMNS, num_warps=4
        )


@triton.jit(do_not_specialize_on_alignment=["logits", "where", "table", "seen", "counts", "factors"])
def _penalize(logits, where, table, seen, counts, factors, stride, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    entry = tl.load(table + row)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab
    x_at = logits + tl.load(where + row) * stride + column
    x = tl.load(x_at, mask=inside, other=0.0)
    count = tl.load(counts + entry * vocab + column, mask=inside, other=0)
    known = tl.load(seen + entry * vocab + column, mask=inside, other=0) != 0
    repetition, frequency = tl.load(factors + entry * 3), tl.load(factors + entry * 3 + 1)
    presence = tl.load(factors + entry * 3 + 2)
    x = tl.where(known, tl.where(x > 0, x / repetition, x * repetition), x)
    x = x - frequency * count.to(tl.float32)
    x = tl.where(count > 0, x - presence, x)
    tl.store(x_at, x, mask=inside)

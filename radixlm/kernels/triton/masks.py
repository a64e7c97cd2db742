"""Token masks over logits in one pass that writes only what is forbidden. Knows tensors only."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK_COLUMNS = 4096


def apply_token_masks(logits: Tensor, where: Tensor, bits: Tensor) -> None:
    """`radixlm.kernels.masks.apply_token_masks` for logits [L, V] whose rows are contiguous."""
    rows, vocab = len(where), logits.shape[1]
    if rows:
        _apply[(triton.cdiv(vocab, BLOCK_COLUMNS), rows)](
            logits, where, bits, logits.stride(0), bits.stride(0), vocab, BLOCK=BLOCK_COLUMNS, num_warps=8
        )


@triton.jit(do_not_specialize_on_alignment=["where", "bits"])
def _apply(logits, where, bits, stride, words, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab
    word = tl.load(bits + row * words + column // 32, mask=inside, other=-1)
    forbidden = inside & (((word >> (column % 32)) & 1) == 0)
    tl.store(logits + tl.load(where + row) * stride + column, float("-inf"), mask=forbidden)

"""Page tables written one row after the other, as some attention libraries want them. Knows tensors only."""

import triton
import triton.language as tl
from torch import Tensor


def flatten_pages(page_table: Tensor, slots: Tensor, ends: Tensor, longest: int, out: Tensor) -> None:
    """out[ends[r] .. ends[r + 1]) = the first pages of row slots[r] of the table.

    page_table: int32 [slots, pages]; slots: int32 [R]; ends: int32 [R + 1], rising from 0; longest: the most pages of a
    row; out: int32.
    """
    block = 1024
    _flatten[(triton.cdiv(longest, block), slots.shape[0])](
        page_table, slots, ends, out, page_table.stride(0), BLOCK=block, num_warps=4
    )


@triton.jit(do_not_specialize_on_alignment=["slots", "ends", "out"])
def _flatten(table, slots, ends, out, stride, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    begin = tl.load(ends + row)
    mask = index < tl.load(ends + row + 1) - begin
    page = tl.load(table + tl.load(slots + row).to(tl.int64) * stride + index, mask=mask, other=0)
    tl.store(out + begin.to(tl.int64) + index, page, mask=mask)

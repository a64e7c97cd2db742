"""Keys and values side by side for a step's chunks, where copying them pays. Knows pools and rows, no kernel.

Kernels that find keys by themselves, page by page, load them with more instructions than those that read one stretch of
memory: on an H200 they take a fifth longer. A copy of the keys costs the same for one query as for thousands.
"""

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import AttentionFacts, RowBatch

QUERY_HEADS_PER_KEY = 4096  # from so many on, on the average, a copied key head pays (NVIDIA H200: 2,000 to 4,000)
MOST_BYTES = 256 << 20  # of one layer's copied keys and values: less than the feed-forward block takes for such chunks


def pairs(batch: RowBatch, first_row: int) -> int:
    """How often a query of the rows from `first_row` on meets a key: all before its chunk, half of its own."""
    starts, counts = (host[first_row:].astype(np.int64) for host in (batch.starts_host, batch.counts_host))
    return int((counts * (2 * starts + counts)).sum()) // 2


def worth_gathering(facts: AttentionFacts, batch: RowBatch, first_row: int) -> bool:
    """Whether the rows from `first_row` on have so many queries for their keys that these had better be copied."""
    keys = int(batch.starts_host[first_row:].sum()) + int(batch.counts_host[first_row:].sum())
    copied_bytes = 2 * keys * facts.num_kv_heads * facts.head_dim * facts.dtype.itemsize
    shared_by = facts.num_heads // facts.num_kv_heads
    return copied_bytes <= MOST_BYTES and pairs(batch, first_row) * shared_by >= QUERY_HEADS_PER_KEY * keys


def key_index(batch: RowBatch, first_row: int) -> Tensor:
    """int64 [K]: where in the pool lie the keys of the rows from `first_row` on, row after row, by position."""
    device = batch.page_table.device
    lengths = batch.starts_host[first_row:].astype(np.int64) + batch.counts_host[first_row:]
    total = int(lengths.sum())
    columns = np.stack((batch.slots_host[first_row:], np.cumsum(lengths) - lengths, lengths))
    slots, begins, counts = torch.from_numpy(columns).to(device, non_blocking=True)
    slot, begin = torch.repeat_interleave(torch.stack((slots, begins)), counts, dim=1, output_size=total)
    position = torch.arange(total, device=device) - begin
    index: Tensor = batch.page_table[slot, position // batch.page_size].to(torch.int64) * batch.page_size
    return index.add_(position % batch.page_size)

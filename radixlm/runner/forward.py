"""The parts of a step that eager steps and graphs share: inputs of decode rows, and hidden vectors to tokens. No host."""

from collections.abc import Iterator

import torch
from torch import Tensor

from radixlm.models.decoder import Decoder
from radixlm.runner.rows import Rows
from radixlm.runner.sampler import draw

LOGITS_ROWS = 1024  # so many rows' logits are in memory at once; more rows at once would not be faster


def kv_index(rows: Rows, slots: Tensor, positions: Tensor, page_size: int) -> Tensor:
    """Where the token of `slots` (int64 [T]) at `positions` (int64 [T]) lies in the pool: int64 [T]."""
    page = positions if page_size == 1 else torch.div(positions, page_size, rounding_mode="floor")
    entry = torch.add(page, slots, alpha=rows.page_table.shape[1])
    pages = rows.page_table.view(-1).index_select(0, entry).to(torch.int64)
    return pages if page_size == 1 else torch.add(positions % page_size, pages, alpha=page_size)


def spans(rows: int) -> Iterator[slice]:
    """`rows` cut into pieces whose logits are made together."""
    return (slice(first, min(first + LOGITS_ROWS, rows)) for first in range(0, rows, LOGITS_ROWS))


def draw_all(model: Decoder, rows: Rows, hidden: Tensor, slots: Tensor, outputs: Tensor, tokens: Tensor) -> None:
    """`sampler.draw` from hidden vectors [L, hidden_size], into tokens (int64 [L])."""
    for span in spans(len(hidden)):
        tokens[span].copy_(draw(rows, model.logits(hidden[span]), slots[span], outputs[span]))

"""Token counts of the requests that have penalties, in a table that grows as they come. Knows slots, not steps."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from radixlm.kernels.sampling import apply_penalties
from radixlm.protocol.arrays import I64
from radixlm.protocol.plan import SlotInit
from radixlm.runner.staging import Staging


class Penalties:
    """A table row per slot with penalties: which tokens were seen, and how often among the outputs."""

    def __init__(self, vocab_size: int, staging: Staging) -> None:
        self._vocab_size = vocab_size
        self._staging = staging
        self._index: dict[int, int] = {}  # slot -> row of the table
        self._free: list[int] = []
        self._seen = torch.zeros(0, vocab_size, dtype=torch.bool, device=staging.device)
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=staging.device)
        self._factors = torch.zeros(0, 3, device=staging.device)  # repetition, frequency, presence

    def __contains__(self, slot: int) -> bool:
        return slot in self._index

    def __bool__(self) -> bool:
        return bool(self._index)

    def start(self, init: SlotInit) -> None:
        """Count the tokens a request brings: `prompt` for repetition only, `outputs` for all three."""
        if not self._free:
            self._grow()
        row = self._index[init.slot] = self._free.pop()
        params = init.params
        factors = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        outputs, prompt, factors_d = self._staging.send(
            [init.outputs.astype(np.int64), init.prompt.astype(np.int64), np.array(factors, np.float32)]
        )
        self._factors[row] = factors_d
        counts = self._counts[row].zero_()
        counts.index_add_(0, outputs, torch.ones_like(outputs, dtype=torch.int32))
        torch.gt(counts, 0, out=self._seen[row])
        self._seen[row].index_fill_(0, prompt, True)

    def stop(self, slot: int) -> None:
        row = self._index.pop(slot, None)
        if row is not None:
            self._free.append(row)

    def rows(self, slots: Sequence[int]) -> I64:
        """Table rows of slots that have penalties."""
        return np.array([self._index[slot] for slot in slots], np.int64)

    def apply(self, logits: Tensor, where: Tensor, table: Tensor) -> None:
        """Change rows `where` (int64 [N]) of logits (float32 [L, vocab]) by the counts in rows `table` (int64 [N])."""
        apply_penalties(logits, where, table, self._seen, self._counts, self._factors)

    def count(self, table: Tensor, tokens: Tensor) -> None:
        """One new output token for each row of the table; rows are distinct."""
        entry = torch.add(tokens, table, alpha=self._vocab_size)
        self._counts.view(-1).index_add_(0, entry, torch.ones_like(entry, dtype=torch.int32))
        self._seen.view(-1).index_fill_(0, entry, True)

    def _grow(self) -> None:
        old = len(self._seen)
        new = max(4, old)
        self._seen = torch.cat([self._seen, self._seen.new_zeros(new, self._vocab_size)])
        self._counts = torch.cat([self._counts, self._counts.new_zeros(new, self._vocab_size)])
        self._factors = torch.cat([self._factors, self._factors.new_zeros(new, 3)])
        self._free += range(old + new - 1, old - 1, -1)

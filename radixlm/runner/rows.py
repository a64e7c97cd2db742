"""The device rows: one per running request for its whole life. Owns last tokens, page tables and sampling state.

Host twins (numpy, suffix _host) of the few columns that decide which code runs are kept beside the tensors, so that a
step never reads the device to know what to do. Knows plans, not requests.
"""

import numpy as np
import torch
from torch import Tensor

from radixlm.protocol.arrays import I32
from radixlm.protocol.plan import SlotInit

FIRST_CANDIDATES = 1024  # a nucleus is first sought among this many tokens


class Rows:
    """Tensors over `slots` device rows.

    last_token int64 [S]; page_table int32 [S, P]; temperature, top_p, min_p, frequency, presence, repetition float32
    [S]; top_k, seed int64 [S].
    """

    def __init__(self, slots: int, pages_per_slot: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self.last_token = torch.zeros(slots, dtype=torch.int64, device=device)
        self.page_table = torch.zeros(slots, pages_per_slot, dtype=torch.int32, device=device)
        self.temperature = torch.ones(slots, device=device)
        self.top_p = torch.ones(slots, device=device)
        self.min_p = torch.zeros(slots, device=device)
        self.top_k = torch.full((slots,), vocab_size, dtype=torch.int64, device=device)
        self.seed = torch.zeros(slots, dtype=torch.int64, device=device)
        self.greedy_host = np.ones(slots, dtype=np.bool_)
        self.candidates_host = np.zeros(slots, dtype=np.int32)  # 0: no filter
        self.min_new_host = np.zeros(slots, dtype=np.int32)
        self.stop_ids: dict[int, Tensor] = {}  # only slots with min_new_tokens
        self.bias: dict[int, tuple[Tensor, Tensor]] = {}  # only slots with logit_bias: ids, values
        self.penalties = Penalties(vocab_size, device)

    def start(self, init: SlotInit) -> None:
        """Take a request onto a slot, replacing all that an earlier one left there."""
        slot, params = init.slot, init.params
        top_k = self.vocab_size if params.top_k < 0 else min(params.top_k, self.vocab_size)
        self.temperature[slot] = 1.0 if params.greedy else params.temperature
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.top_k[slot] = top_k
        self.seed[slot] = params.seed
        self.greedy_host[slot] = params.greedy
        filtered = top_k < self.vocab_size or params.top_p < 1.0 or params.min_p > 0.0
        self.candidates_host[slot] = min(top_k, FIRST_CANDIDATES) if filtered else 0
        self.min_new_host[slot] = params.min_new_tokens
        self.stop_ids.pop(slot, None)
        self.bias.pop(slot, None)
        if params.min_new_tokens > 0 and init.stop_ids:
            self.stop_ids[slot] = torch.tensor(init.stop_ids, dtype=torch.int64, device=self.device)
        if params.logit_bias:
            ids = torch.tensor(list(params.logit_bias), dtype=torch.int64, device=self.device)
            values = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32, device=self.device)
            self.bias[slot] = (ids, values)
        self.penalties.stop(slot)
        if params.penalized:
            self.penalties.start(init)

    def update_pages(self, updates: I32) -> None:
        """Apply the plan's page table differences, rows (slot, index, page), in order."""
        if len(updates):
            changes = torch.from_numpy(updates.astype(np.int64)).to(self.device)
            self.page_table[changes[:, 0], changes[:, 1]] = changes[:, 2].to(torch.int32)


class Penalties:
    """Token counts of the slots whose request has penalties, in a table that grows as they come."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._index: dict[int, int] = {}  # slot -> row of the table
        self._free: list[int] = []
        self.seen = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self.counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self.factors = torch.zeros(0, 3, device=device)  # repetition, frequency, presence

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
        self.factors[row] = torch.tensor(
            [params.repetition_penalty, params.frequency_penalty, params.presence_penalty], device=self._device
        )
        outputs = torch.from_numpy(init.outputs.astype(np.int64)).to(self._device)
        prompt = torch.from_numpy(init.prompt.astype(np.int64)).to(self._device)
        self.counts[row] = torch.bincount(outputs, minlength=self._vocab_size).to(torch.int32)
        self.seen[row] = self.counts[row] > 0
        self.seen[row, prompt] = True

    def stop(self, slot: int) -> None:
        row = self._index.pop(slot, None)
        if row is not None:
            self._free.append(row)

    def rows(self, slots: list[int]) -> Tensor:
        """Table rows (int64) of slots that have penalties."""
        return torch.tensor([self._index[slot] for slot in slots], dtype=torch.int64, device=self._device)

    def count(self, rows: Tensor, tokens: Tensor) -> None:
        """One new output token for each table row; rows are distinct."""
        self.counts[rows, tokens] += 1
        self.seen[rows, tokens] = True

    def _grow(self) -> None:
        old = len(self.seen)
        new = max(4, old)
        self.seen = torch.cat([self.seen, self.seen.new_zeros(new, self._vocab_size)])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(new, self._vocab_size)])
        self.factors = torch.cat([self.factors, self.factors.new_zeros(new, 3)])
        self._free += range(old + new - 1, old - 1, -1)

"""The device rows: one per running request for its whole life. Owns last tokens, page tables and sampling state.

Host twins (numpy, suffix _host) of the few columns that decide which code runs are kept beside the tensors, so that a
step never reads the device to know what to do. Knows plans, not requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import HostPages
from radixlm.protocol.arrays import I32, I64
from radixlm.protocol.extras import LogprobOptions
from radixlm.protocol.plan import SlotInit
from radixlm.runner.embeds import Embeds
from radixlm.runner.penalties import Penalties
from radixlm.runner.staging import HostArray, Staging

FIRST_CANDIDATES = 1024  # a nucleus is first sought among this many tokens


@dataclass(frozen=True)
class Parameters:
    """How L rows sample: temperature, top_p, min_p float32 [L]; top_k, seeds int64 [L]; greedy bool [L]."""

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    seeds: Tensor
    greedy: Tensor


@dataclass(frozen=True)
class PageChanges:
    """Entries of the flat page table and their new pages: int64 [U], each named once, and int32 [U]."""

    index: I64
    pages: I32


class Rows:
    """Tensors over `slots` device rows and one more, `padding_slot`, which nobody owns and whose pages are all null.

    last_token int64 [S + 1]; page_table int32 [S + 1, P]. On the host: pages_host; greedy_host; candidates_host, 0
    where a slot filters nothing; and for the slots that have them stop_ids (int64 ids), bias (int64 ids, float32
    values), logprobs and embeds.
    """

    def __init__(self, slots: int, pages_per_slot: int, vocab_size: int, staging: Staging) -> None:
        self.vocab_size = vocab_size
        self.staging = staging
        self.padding_slot = slots
        device = staging.device
        self.last_token = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.page_table = torch.zeros(slots + 1, pages_per_slot, dtype=torch.int32, device=device)
        # On the CPU the tensor is the host's own.
        on_host = self.page_table.numpy() if device.type == "cpu" else np.zeros(self.page_table.shape, np.int32)
        self.pages_host = HostPages(on_host, np.zeros(slots + 1, np.int64))
        self._floats = torch.ones(3, slots + 1, device=device)  # temperature, top_p, min_p
        self._integers = torch.ones(3, slots + 1, dtype=torch.int64, device=device)  # top_k, seed, greedy
        self.greedy_host = np.ones(slots, dtype=np.bool_)
        self.candidates_host = np.zeros(slots, dtype=np.int32)
        self.min_new_host = np.zeros(slots, dtype=np.int32)
        self.stop_ids: dict[int, I64] = {}
        self.bias: dict[int, tuple[I64, np.ndarray[tuple[int], np.dtype[np.float32]]]] = {}
        self.logprobs: dict[int, LogprobOptions] = {}
        self.embeds = Embeds(staging)
        self.second_at: dict[int, int] = {}
        self.penalties = Penalties(vocab_size, staging)

    def start(self, inits: Sequence[SlotInit]) -> None:
        """Take requests onto slots, replacing all that was left there; of several for one slot the last counts."""
        if not inits:
            return
        latest = {init.slot: init for init in inits}
        self.pages_host.owners[list(latest)] += 1
        floats, integers = [], []
        for slot, init in latest.items():
            params = init.params
            top_k = self.vocab_size if params.top_k < 0 else min(params.top_k, self.vocab_size)
            floats.append((1.0 if params.greedy else params.temperature, params.top_p, params.min_p))
            integers.append((top_k, params.seed, params.greedy))
            filtered = top_k < self.vocab_size or params.top_p < 1.0 or params.min_p > 0.0
            self.greedy_host[slot] = params.greedy
            self.candidates_host[slot] = min(top_k, FIRST_CANDIDATES) if filtered else 0
            self._start_bans_and_bias(init)
            self._start_readings(init)
            self.penalties.stop(slot)
        table: list[HostArray] = [
            np.array(list(latest), np.int64),
            np.array(floats, np.float32).T,
            np.array(integers, np.int64).T,
        ]
        slots_d, floats_d, integers_d = self.staging.send(table)
        self._floats.index_copy_(1, slots_d, floats_d)
        self._integers.index_copy_(1, slots_d, integers_d)
        for init in latest.values():
            if init.params.penalized:
                self.penalties.start(init)

    def parameters(self, slots: Tensor) -> Parameters:
        """How the rows on `slots` (int64 [L], on the device) sample."""
        temperature, top_p, min_p = self._floats.index_select(1, slots)
        top_k, seeds, greedy = self._integers.index_select(1, slots)
        return Parameters(temperature, top_p, min_p, top_k, seeds, greedy != 0)

    def page_changes(self, updates: I32) -> PageChanges | None:
        """The plan's page table differences, rows (slot, index, page) in order, for `apply_pages`; None for none."""
        if not len(updates):
            return None
        index: I64 = updates[:, 0] * np.int64(self.page_table.shape[1]) + updates[:, 1]
        pages = updates[:, 2]
        ordered = np.sort(index)
        if (ordered[1:] == ordered[:-1]).any():  # a parallel scatter has no order: leave the last of each entry only
            _, from_end = np.unique(index[::-1], return_index=True)
            keep = len(index) - 1 - from_end
            index, pages = index[keep], pages[keep]
        self.pages_host.table.reshape(-1)[index] = pages
        return PageChanges(index, np.ascontiguousarray(pages))

    def kv_index(self, slots: Tensor, positions: Tensor, page_size: int) -> Tensor:
        """Where the tokens of `slots` (int64 [T]) at `positions` (int64 [T]) lie in the pool: int64 [T]."""
        page = positions if page_size == 1 else torch.div(positions, page_size, rounding_mode="floor")
        entry = torch.add(page, slots, alpha=self.page_table.shape[1])
        pages = self.page_table.view(-1).index_select(0, entry).to(torch.int64)
        return pages if page_size == 1 else torch.add(positions % page_size, pages, alpha=page_size)

    def apply_pages(self, index: Tensor, pages: Tensor) -> None:
        """Write page changes, now on the device; of entries that are named twice, any one may win."""
        self.page_table.view(-1).index_copy_(0, index, pages)

    def _start_bans_and_bias(self, init: SlotInit) -> None:
        slot, params = init.slot, init.params
        self.min_new_host[slot] = params.min_new_tokens
        self.stop_ids.pop(slot, None)
        self.bias.pop(slot, None)
        if params.min_new_tokens > 0 and init.stop_ids:
            self.stop_ids[slot] = np.array(init.stop_ids, np.int64)
        if params.logit_bias:
            ids = np.fromiter(params.logit_bias, np.int64)
            self.bias[slot] = (ids, np.fromiter(params.logit_bias.values(), np.float32))

    def _start_readings(self, init: SlotInit) -> None:
        self.logprobs.pop(init.slot, None)
        if init.logprobs is not None:
            self.logprobs[init.slot] = init.logprobs
        self.embeds.start(init)
        self.second_at.pop(init.slot, None)
        if init.second_at is not None:
            self.second_at[init.slot] = init.second_at

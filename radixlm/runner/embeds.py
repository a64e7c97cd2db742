"""Embeddings that requests brought in place of tokens, on the host until they are used. Knows plans, not requests."""

import numpy as np
from torch import Tensor

from radixlm.protocol.arrays import F32, I64
from radixlm.protocol.plan import SlotInit, StepPlan
from radixlm.runner.staging import HostArray, Staging


class Embeds:
    """By slot, float32 [n, hidden_size]: of a prompt's first n positions."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._own: dict[int, F32] = {}

    def __bool__(self) -> bool:
        return bool(self._own)

    def start(self, init: SlotInit) -> None:
        """A request takes a slot, whatever was there."""
        self._own.pop(init.slot, None)
        if init.embeds is not None:
            self._own[init.slot] = init.embeds

    def take(self, plan: StepPlan) -> tuple[Tensor, Tensor] | None:
        """Which tokens of a step have such embeddings (int64 [n]), and these (float32 [n, hidden_size]), on the device.

        Those of a prompt that is done are forgotten: a request that has to start again brings them again.
        """
        begins = np.cumsum(plan.counts, dtype=np.int64) - plan.counts
        where: list[I64] = []
        values: list[F32] = []
        for row in range(plan.decode_rows, len(plan.slots)):
            slot, start, count = int(plan.slots[row]), int(plan.starts[row]), int(plan.counts[row])
            own = self._own.get(slot)
            if own is None:
                continue
            part = own[start : start + count]
            where.append(np.arange(len(part)) + begins[row])
            values.append(part)
            if start + count >= len(own):
                del self._own[slot]
        if not where:
            return None
        arrays: list[HostArray] = [np.concatenate(where), np.concatenate(values)]
        index, embeds = self._staging.send(arrays)
        return index, embeds

"""From a step's hidden states to one vector per prompt that ends in it. Knows plans and the model's card, no request.

Only the last token's state needs nothing of a prompt's earlier chunks; for other modes what they add up to is carried
by slot from chunk to chunk, and no part of the prompt may come from the cache.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from radixlm.config.card import PoolingCard, PoolingMode
from radixlm.models.base import Model
from radixlm.protocol.arrays import F32, I32
from radixlm.protocol.extras import Extras
from radixlm.protocol.plan import LAST, StepPlan
from radixlm.runner.staging import HostArray, Staging, event_after


@dataclass(frozen=True)
class Vectors:
    """Vectors float32 [L, D] of the rows `rows`, on their way to the host: there once `event` has come."""

    rows: I32
    values: Tensor
    event: torch.cuda.Event | None

    def wait(self) -> tuple[dict[int, Extras], I32]:
        """The vectors by row, and the rows that have none because theirs is not finite."""
        if self.event is not None:
            self.event.synchronize()
        values: F32 = self.values.numpy()
        finite = np.isfinite(values).all(axis=1)
        found = {int(self.rows[i]): Extras(embedding=values[i]) for i in np.flatnonzero(finite).tolist()}
        return found, self.rows[~finite]


@dataclass(frozen=True)
class _Step:
    """A step's rows on the device, R of T tokens in all; L of them end their prompts.

    hidden: [T, hidden_size]. resumed: a row continues or leaves something to continue. slots, starts, first, last:
    int64 [R], the latter two places among the tokens; lengths: float32 [R, 1], tokens of the prompt up to the row's
    end; ending: int64 [L], which rows; owner: int64 [T], whose row a token is.
    """

    hidden: Tensor
    resumed: bool
    slots: Tensor
    starts: Tensor
    first: Tensor
    last: Tensor
    lengths: Tensor
    ending: Tensor
    owner: Tensor


class Pooler:
    """Pools as the model's card says, over `slots` device rows."""

    def __init__(self, model: Model, card: PoolingCard, slots: int, staging: Staging) -> None:
        self._model = model
        self._card = card
        self._staging = staging
        self._slots = slots
        self._carried: dict[PoolingMode, Tensor] = {}
        self._modes: dict[PoolingMode, Callable[[_Step], Tensor]] = {
            "cls": lambda step: step.hidden.index_select(0, step.first).index_select(0, step.ending),
            "lasttoken": lambda step: step.hidden.index_select(0, step.last.index_select(0, step.ending)),
            "mean": lambda step: self._sum("mean", step) / _lengths(step),
            "mean_sqrt_len_tokens": lambda step: self._sum("mean_sqrt_len_tokens", step) / _lengths(step).sqrt(),
            "weightedmean": self._weighted_mean,
            "max": self._max,
        }

    def start(self, plan: StepPlan, hidden: Tensor) -> Vectors:
        """Start bringing the vectors of the rows with LAST to the host. hidden: [T, hidden_size], all of the step's."""
        step = self._step(plan, hidden)
        pooled = [self._modes[mode](step).to(hidden.dtype) for mode in self._card.modes]
        vectors = self._model.logits(pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1))
        if self._card.sigmoid:
            vectors = vectors.sigmoid()
        if self._card.normalize:
            vectors = F.normalize(vectors, dim=-1)
        rows = np.flatnonzero(plan.flags & LAST).astype(np.int32)
        return Vectors(rows, vectors.to("cpu", non_blocking=True), event_after(vectors))

    def _step(self, plan: StepPlan, hidden: Tensor) -> _Step:
        counts = plan.counts.astype(np.int64)
        ends = np.cumsum(counts)
        arrays: list[HostArray] = [
            plan.slots.astype(np.int64),
            plan.starts.astype(np.int64),
            ends - counts,
            ends - 1,
            (plan.starts + plan.counts).astype(np.float32)[:, None],
            np.flatnonzero(plan.flags & LAST),
            np.repeat(np.arange(len(counts)), counts),
        ]
        ending = plan.flags & LAST != 0
        resumed = bool(plan.starts.any() or not ending.all())
        return _Step(hidden, resumed, *self._staging.send(arrays))

    def _sum(self, mode: PoolingMode, step: _Step, weights: Tensor | None = None) -> Tensor:
        """float32 [L, hidden_size]: over all of each ending prompt's tokens, `weights` [T, 1] times their states."""
        hidden = step.hidden.float()
        here = hidden.new_zeros(len(step.slots), hidden.shape[1])
        here.index_add_(0, step.owner, hidden if weights is None else hidden * weights)
        return self._carry(mode, step, here, 0.0, torch.add)

    def _weighted_mean(self, step: _Step) -> Tensor:
        """Weights are positions, from 1 on (SGPT, arXiv 2202.08904)."""
        tokens = torch.arange(len(step.owner), device=step.owner.device)
        position = tokens + (step.starts - step.first).index_select(0, step.owner) + 1
        length = _lengths(step)
        return self._sum("weightedmean", step, position[:, None].float()) / (length * (length + 1) / 2)

    def _max(self, step: _Step) -> Tensor:
        hidden = step.hidden.float()
        here = hidden.new_full((len(step.slots), hidden.shape[1]), -torch.inf)
        here.scatter_reduce_(0, step.owner[:, None].expand_as(hidden), hidden, "amax")
        return self._carry("max", step, here, -torch.inf, torch.maximum)

    def _carry(
        self, mode: PoolingMode, step: _Step, here: Tensor, nothing: float, join: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Of the rows that end, `here` [R, hidden_size] joined with what earlier chunks left. All is left again."""
        if step.resumed:
            if mode not in self._carried:
                self._carried[mode] = here.new_zeros(self._slots, here.shape[1])
            carried = self._carried[mode]
            before = carried.index_select(0, step.slots).masked_fill_((step.starts == 0)[:, None], nothing)
            here = join(before, here)
            carried.index_copy_(0, step.slots, here)
        return here.index_select(0, step.ending)


def _lengths(step: _Step) -> Tensor:
    return step.lengths.index_select(0, step.ending)

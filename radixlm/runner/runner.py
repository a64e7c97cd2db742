"""One forward step on a device: applies a plan's differences, runs the model, samples. Knows plans, not requests.

`launch` starts a step and `retire` waits for it; steps are retired in the order they were launched. A step that fails is
answered with an error result, and the next one may run.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import AttentionBackend, ForwardContext, RowBatch
from radixlm.base import log
from radixlm.models.decoder import Decoder
from radixlm.protocol.arrays import I32
from radixlm.protocol.plan import HOST, NOT_SAMPLED, SAMPLE, StepPlan, StepResult
from radixlm.runner.rows import Rows
from radixlm.runner.sampler import next_tokens

logger = log.get(__name__)


@dataclass(frozen=True)
class StepInFlight:
    """A launched step. `tokens` int64 [L] on the device: the samples of the rows with SAMPLE, in row order."""

    plan: StepPlan
    tokens: Tensor | None
    error: str | None = None


class Runner:
    """Runs steps of one model over one KV pool on one device."""

    def __init__(self, model: Decoder, attention: AttentionBackend, rows: Rows) -> None:
        self._model = model
        self._attention = attention
        self._rows = rows
        self._device = rows.device
        self._page_size = attention.pool.page_size

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> StepInFlight:
        """Start a step. Row state is applied even when the forward pass fails, so that later steps find it."""
        for init in plan.started:
            self._rows.start(init)
        self._rows.update_pages(plan.page_updates)
        try:
            return StepInFlight(plan, self._forward(plan))
        except (RuntimeError, MemoryError) as error:
            logger.exception("step %d failed", plan.step)
            return StepInFlight(plan, None, f"{type(error).__name__}: {error}".splitlines()[0])

    def retire(self, step: StepInFlight) -> StepResult:
        """Wait for a step and bring its tokens to the host."""
        plan = step.plan
        tokens = np.full(len(plan.slots), NOT_SAMPLED, np.int32)
        if step.error is not None:
            return StepResult(plan.step, tokens, step.error)
        if step.tokens is not None:
            tokens[(plan.flags & SAMPLE) != 0] = step.tokens.cpu().numpy()
        return StepResult(plan.step, tokens)

    def _forward(self, plan: StepPlan) -> Tensor | None:
        input_ids, batch = self._inputs(plan)
        context = ForwardContext(batch, self._attention, self._attention.prepare(batch))
        hidden = self._model.forward(input_ids, context)
        (sampled,) = np.nonzero(plan.flags & SAMPLE)
        if not len(sampled):
            return None
        last = np.cumsum(plan.counts)[sampled] - 1
        logits = self._model.logits(hidden[self._put(last.astype(np.int64))])
        return next_tokens(self._rows, logits, plan.slots[sampled], plan.outputs[sampled])

    def _inputs(self, plan: StepPlan) -> tuple[Tensor, RowBatch]:
        """Token ids int64 [T] and the batch: host tokens from the plan, the others gathered from the device rows."""
        slots, starts, counts = plan.slots, plan.starts, plan.counts
        total = int(counts.sum())
        ends = np.cumsum(counts)
        row_of_token = np.repeat(np.arange(len(slots)), counts)
        positions = np.arange(total) - (ends - counts)[row_of_token] + starts[row_of_token]
        device = self._put(np.stack([slots, starts, counts]))
        positions_d = self._put(positions.astype(np.int64))
        slot_of_token = self._put(slots[row_of_token].astype(np.int64))
        pages = self._rows.page_table[slot_of_token, positions_d // self._page_size]
        kv_index = pages.to(torch.int64) * self._page_size + positions_d % self._page_size
        batch = RowBatch(
            slots=device[0],
            starts=device[1],
            counts=device[2],
            positions=positions_d,
            kv_index=kv_index,
            page_table=self._rows.page_table,
            page_size=self._page_size,
            decode_rows=plan.decode_rows,
            slots_host=slots,
            starts_host=starts,
            counts_host=counts,
        )
        return self._token_ids(plan, row_of_token, slot_of_token), batch

    def _token_ids(self, plan: StepPlan, row_of_token: "np.ndarray[tuple[int], np.dtype[np.int64]]", slots: Tensor) -> Tensor:
        from_host = (plan.flags[row_of_token] & HOST) != 0
        if from_host.all():
            return self._put(plan.tokens.astype(np.int64))
        ids = self._rows.last_token[slots]
        if from_host.any():
            ids[self._put(np.nonzero(from_host)[0])] = self._put(plan.tokens.astype(np.int64))
        return ids

    def _put(self, array: "I32 | np.ndarray[tuple[int], np.dtype[np.int64]]") -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

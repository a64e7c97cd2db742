"""One forward step on a device: applies a plan's differences, runs the model, samples. Knows plans, not requests.

`launch` starts a step and `retire` waits for it; steps are retired in the order they were launched. On CUDA `launch`
waits for nothing, and a step's tokens stay on the device for the next one. A step that fails is answered with an error
result, and the next one may run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import AttentionBackend, ForwardContext, RowBatch
from radixlm.base import log
from radixlm.models.decoder import Decoder
from radixlm.protocol.plan import NOT_SAMPLED, SAMPLE, StepPlan, StepResult
from radixlm.runner.graphs import CaptureReport, DecodeGraphs
from radixlm.runner.rows import PageChanges, Rows
from radixlm.runner.sampler import next_tokens
from radixlm.runner.staging import Arrival, HostArray, Landing

logger = log.get(__name__)


@dataclass(frozen=True)
class StepInFlight:
    """A launched step. `arrival` brings the samples of the rows with SAMPLE, in row order."""

    plan: StepPlan
    arrival: Arrival | None
    error: str | None = None


class Runner:
    """Runs steps of one model over one KV pool on one device."""

    def __init__(self, model: Decoder, attention: AttentionBackend, rows: Rows) -> None:
        self._model = model
        self._attention = attention
        self._rows = rows
        self._device = rows.staging.device
        self._page_size = attention.pool.page_size
        self._landing = Landing(self._device, len(rows.last_token))
        self._graphs: DecodeGraphs | None = None

    @property
    def capturable(self) -> bool:
        """Whether decode steps can be captured here."""
        return self._device.type == "cuda" and self._attention.capturable

    def capture(self, sizes: Sequence[int]) -> CaptureReport:
        """Capture decode steps of these row counts (ascending); from now on such steps are replayed. CUDA only."""
        self._graphs = DecodeGraphs(self._model, self._attention, self._rows, sizes)
        return self._graphs.report

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> StepInFlight:
        """Start a step. Row state is applied even when the forward pass fails, so that later steps find it."""
        self._rows.start(plan.started)
        changes = self._rows.page_changes(plan.page_updates)
        graphs = self._graphs
        run: Callable[[], Tensor | None]
        if graphs is not None and plan.decode_rows == len(plan.slots) <= graphs.most_rows:
            graphs.send(plan, changes)
            run = partial(graphs.replay, plan)
        else:
            run = partial(self._forward, plan, self._send(plan, changes))
        try:
            tokens = run()
            return StepInFlight(plan, self._landing.start(tokens) if tokens is not None else None)
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, torch.AcceleratorError):
                raise  # the device is lost to this process: nothing will run on it again
            logger.exception("step %d failed", plan.step)
            message = f"{type(error).__name__}: {error}".splitlines()[0]
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # outside the handler, whose traceback keeps the step's tensors alive
        return StepInFlight(plan, None, message)

    def retire(self, step: StepInFlight) -> StepResult:
        """Wait for a step and take its tokens."""
        plan = step.plan
        tokens = np.full(len(plan.slots), NOT_SAMPLED, np.int32)
        if step.arrival is not None:
            tokens[(plan.flags & SAMPLE) != 0] = self._landing.wait(step.arrival)
        return StepResult(plan.step, tokens, step.error)

    def _send(self, plan: StepPlan, changes: PageChanges | None) -> list[Tensor]:
        """Bring an eager step's numbers to the device, and apply the page table changes that come with them."""
        arrays = _numbers(plan)
        if changes is None:
            return self._rows.staging.send(arrays)
        *numbers, index, pages = self._rows.staging.send([*arrays, changes.index, changes.pages])
        self._rows.apply_pages(index, pages)
        return numbers

    def _forward(self, plan: StepPlan, numbers: list[Tensor]) -> Tensor | None:
        """An eager step: tokens int64 [L] of the sampled rows, or None when there are none."""
        table, host_ids, last, sampled_slots, sampled_outputs = numbers
        input_ids, batch = self._inputs(plan, table, host_ids)
        context = ForwardContext(batch, self._attention, self._attention.prepare(batch))
        hidden = self._model.forward(input_ids, context)
        if not len(last):
            return None
        if len(last) < len(hidden):
            hidden = hidden.index_select(0, last)
        sampled = np.flatnonzero(plan.flags & SAMPLE)
        return next_tokens(
            self._model, self._rows, hidden, sampled_slots, sampled_outputs, plan.slots[sampled], plan.outputs[sampled]
        )

    def _inputs(self, plan: StepPlan, table: Tensor, host_ids: Tensor) -> tuple[Tensor, RowBatch]:
        """Token ids int64 [T] and the batch. table: int32 [4, R]: slots, starts, counts, start less first token."""
        slots, starts, counts, shift = table
        decode_rows, rows = plan.decode_rows, self._rows
        if decode_rows == len(plan.slots):
            token_slots, positions = slots.to(torch.int64), starts.to(torch.int64)
        else:
            total = decode_rows + len(plan.tokens)
            spread = torch.repeat_interleave(torch.stack((slots, shift)), counts, dim=1, output_size=total)
            token_slots, token_shift = spread.to(torch.int64)
            positions = torch.arange(total, device=self._device) + token_shift
        batch = RowBatch(
            slots=slots,
            starts=starts,
            counts=counts,
            positions=positions,
            kv_index=rows.kv_index(token_slots, positions, self._page_size),
            page_table=rows.page_table,
            page_size=self._page_size,
            decode_rows=decode_rows,
            slots_host=plan.slots,
            starts_host=plan.starts,
            counts_host=plan.counts,
        )
        decoded = rows.last_token.index_select(0, token_slots[:decode_rows]) if decode_rows else None
        chunks = host_ids.to(torch.int64)
        if decoded is None:
            return chunks, batch
        return (torch.cat((decoded, chunks)) if len(host_ids) else decoded), batch


def _numbers(plan: StepPlan) -> list[HostArray]:
    """What an eager step sends; see `Runner._forward`."""
    ends = np.cumsum(plan.counts, dtype=np.int32)
    table = np.stack((plan.slots, plan.starts, plan.counts, plan.starts - ends + plan.counts))
    sampled = np.flatnonzero(plan.flags & SAMPLE)
    return [
        table,
        np.asarray(plan.tokens),
        ends[sampled].astype(np.int64) - 1,
        plan.slots[sampled].astype(np.int64),
        plan.outputs[sampled].astype(np.int64),
    ]

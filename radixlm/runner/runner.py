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
from radixlm.attention.device import DeviceAttention
from radixlm.base import log
from radixlm.models.base import Model
from radixlm.models.decoder import Decoder
from radixlm.protocol.plan import NOT_FINITE, NOT_SAMPLED, SAMPLE, StepPlan, StepResult
from radixlm.runner.capture import CaptureReport, GraphPool
from radixlm.runner.chunk_graphs import ChunkGraphs
from radixlm.runner.graphs import DecodeGraphs
from radixlm.runner.masks import MaskSource, TokenMasks
from radixlm.runner.pooling import Pooler, Vectors
from radixlm.runner.readout import Readout, SampleReadout, read_out, read_samples, reads_samples_only
from radixlm.runner.rows import PageChanges, Rows
from radixlm.runner.sampler import Drawn, next_tokens
from radixlm.runner.short_steps import ShortSteps
from radixlm.runner.staging import Arrival, HostArray, Landing

logger = log.get(__name__)


@dataclass(frozen=True)
class StepInFlight:
    """A launched step. `arrival` brings the samples of the rows with SAMPLE, in row order, `readout` its extras.

    A model that pools has `vectors` in their place. `replayed`: from a captured graph.
    """

    plan: StepPlan
    arrival: Arrival | None
    error: str | None = None
    readout: Readout | SampleReadout | None = None
    vectors: Vectors | None = None
    replayed: bool = False


class Runner:
    """Runs steps of one model over one KV pool on one device."""

    def __init__(self, model: Model, attention: AttentionBackend, rows: Rows) -> None:
        pooling = model.card.pooling
        self._pooler = None if pooling is None else Pooler(model, pooling, len(rows.last_token), rows.staging)
        self._model = model
        self._attention = attention
        self._rows = rows
        self._device = rows.staging.device
        self._page_size = attention.pool.page_size
        self._landing = Landing(self._device, len(rows.last_token))
        self._graphs: DecodeGraphs | None = None
        self._chunk_graphs: ChunkGraphs | None = None
        self._short_steps: ShortSteps | None = None
        self._graph_pool = GraphPool() if self._device.type == "cuda" else None

    @property
    def capturable(self) -> bool:
        """Whether decode steps can be captured here."""
        return self._device.type == "cuda" and self._attention.capturable

    def capture(self, sizes: Sequence[int]) -> CaptureReport:
        """Capture decode steps of these row counts (ascending); from now on such steps are replayed. CUDA only."""
        assert self._graph_pool is not None
        self._graphs = DecodeGraphs(self._model, self._attention, self._rows, sizes, self._graph_pool)
        return self._graphs.report

    def record(self) -> int:
        """Record steps of few tokens where native CPU kernels do all of a layer; of how many tokens, 0 for none."""
        self._short_steps = ShortSteps.record(self._model, self._attention, self._rows)
        return self._short_steps.most_tokens if self._short_steps is not None else 0

    @property
    def chunks_capturable(self) -> bool:
        """Whether steps with prompt tokens can be captured here, in pieces."""
        fits = isinstance(self._attention, DeviceAttention) and isinstance(self._model, Decoder)
        return fits and self._device.type == "cuda"

    def capture_chunks(self, sizes: Sequence[int]) -> CaptureReport:
        """Capture the pieces of steps of these token counts (ascending); any step that fits is then replayed."""
        assert isinstance(self._attention, DeviceAttention) and isinstance(self._model, Decoder)
        assert self._graph_pool is not None
        self._chunk_graphs = ChunkGraphs(self._model, self._attention, self._rows, sizes, self._graph_pool)
        return self._chunk_graphs.report

    @torch.inference_mode()
    def launch(self, plan: StepPlan, masks: MaskSource | None = None) -> StepInFlight:
        """Start a step. Row state is applied even when the forward pass fails, so that later steps find it.

        `masks` is asked between the forward pass and sampling; steps that were launched before may be retired in it.
        """
        ask = masks if masks is not None else _no_masks
        self._rows.start(plan.started)
        changes = self._rows.page_changes(plan.page_updates)
        embeds = self._rows.embeds.take(plan) if self._rows.embeds else None
        graphs, replayed = self._graphs, True
        run: Callable[[], tuple[Tensor, Drawn | None]]
        if graphs is not None and plan.decode_rows == len(plan.slots) <= graphs.most_rows and not self._eager(plan):
            graphs.send(plan, changes)
            run = partial(graphs.replay, plan, ask, reads_samples_only(self._rows, plan))
        elif self._chunk_graphs is not None and embeds is None and self._chunk_graphs.hold(plan):
            self._chunk_graphs.send(plan)
            table, *sampled_rows = self._send([_table(plan), *_sampled_rows(plan)], changes)
            run = partial(self._replay_chunks, self._chunk_graphs, plan, table, sampled_rows, ask)
        else:
            replayed = False
            run = partial(self._forward, plan, self._send(_numbers(plan), changes), ask, embeds)
        try:
            hidden, drawn = run()
            if self._pooler is not None:
                return StepInFlight(plan, None, vectors=self._pooler.start(plan, hidden))
            arrival = self._landing.start(drawn.tokens) if drawn is not None else None
            readout = self._read_out(plan, hidden, drawn) if plan.readings else None
            return StepInFlight(plan, arrival, readout=readout, replayed=replayed)
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
        if step.vectors is not None:
            extras, failed = step.vectors.wait()
            tokens[failed] = NOT_FINITE
        else:
            extras = step.readout.wait() if step.readout is not None else {}
        return StepResult(plan.step, tokens, step.error, extras, replayed=step.replayed)

    def weight(self, name: str) -> Tensor | None:
        """A weight as a checkpoint has it, by its Hugging Face name; None for a name the model does not have."""
        return self._model.weight(name)

    def _eager(self, plan: StepPlan) -> bool:
        """Whether a step of decode rows that could be replayed is not."""
        return self._attention.rather_eager(plan.slots, plan.starts, self._rows.pages_host)

    def _send(self, arrays: list[HostArray], changes: PageChanges | None) -> list[Tensor]:
        """Bring a step's numbers to the device, and apply the page table changes that come with them."""
        if changes is None:
            return self._rows.staging.send(arrays)
        *numbers, index, pages = self._rows.staging.send([*arrays, changes.index, changes.pages])
        self._rows.apply_pages(index, pages)
        return numbers

    def _forward(
        self, plan: StepPlan, numbers: list[Tensor], ask: MaskSource, embeds: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Drawn | None]:
        """An eager step: hidden [T, hidden_size], and what was drawn for the sampled rows, None without any.

        Where nothing else is read, what follows the last attention is done for sampled rows alone: [L, hidden_size].
        """
        table, host_ids, *sampled_rows = numbers
        input_ids, batch = self._inputs(plan, table, host_ids)
        wanted = self._wanted(plan, sampled_rows)
        short = self._short_steps
        if short is not None and len(input_ids) <= short.most_tokens:
            hidden = short.forward(input_ids, batch, embeds, wanted)
        else:
            context = ForwardContext(batch, self._attention, self._attention.prepare(batch), embeds, wanted)
            hidden = self._model.forward(input_ids, context)
        return hidden, self._sample(plan, hidden, sampled_rows, ask())

    def _replay_chunks(
        self, graphs: ChunkGraphs, plan: StepPlan, table: Tensor, sampled_rows: list[Tensor], ask: MaskSource
    ) -> tuple[Tensor, Drawn | None]:
        """`_forward` of a step that was captured."""
        hidden = graphs.replay(plan, table, self._wanted(plan, sampled_rows))
        return hidden, self._sample(plan, hidden, sampled_rows, ask())

    def _read_out(self, plan: StepPlan, hidden: Tensor, drawn: Drawn | None) -> Readout | SampleReadout:
        if drawn is not None and drawn.logprobs is not None:
            return read_samples(plan, drawn.tokens, drawn.logprobs)
        return read_out(self._model, self._rows, plan, hidden, None if drawn is None else drawn.tokens)

    def _wanted(self, plan: StepPlan, sampled_rows: list[Tensor]) -> Tensor | None:
        """The tokens whose hidden state is read, int64 [L]; None: all. sampled_rows: as `_sampled_rows` made them."""
        last = sampled_rows[0]
        few = len(last) < plan.decode_rows + len(plan.tokens)
        return last if few and self._pooler is None and not plan.readings else None

    def _sample(
        self, plan: StepPlan, hidden: Tensor, sampled_rows: list[Tensor], masks: TokenMasks | None
    ) -> Drawn | None:
        """What is drawn for the sampled rows. sampled_rows: as `_sampled_rows` made them."""
        last, slots, outputs = sampled_rows
        if not len(last):
            return None
        last_hidden = hidden.index_select(0, last) if len(last) < len(hidden) else hidden
        sampled = np.flatnonzero(plan.flags & SAMPLE)
        slots_host, outputs_host = plan.slots[sampled], plan.outputs[sampled]
        own = masks.among(sampled) if masks is not None else None
        read = reads_samples_only(self._rows, plan)
        host = (slots_host, outputs_host)
        return next_tokens(self._model, self._rows, last_hidden, slots, outputs, *host, own, read)

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
            pages_host=rows.pages_host,
            token_types=self._token_types(plan) if rows.second_at else None,
        )
        decoded = rows.last_token.index_select(0, token_slots[:decode_rows]) if decode_rows else None
        chunks = host_ids.to(torch.int64)
        if decoded is None:
            return chunks, batch
        return (torch.cat((decoded, chunks)) if len(host_ids) else decoded), batch

    def _token_types(self, plan: StepPlan) -> Tensor:
        """int64 [T]: 1 from where the second of a row's two texts begins; only rows that start at 0 have two."""
        types = np.zeros(int(plan.counts.sum()), np.int64)
        firsts = np.cumsum(plan.counts) - plan.counts
        for first, count, slot in zip(firsts.tolist(), plan.counts.tolist(), plan.slots.tolist(), strict=True):
            types[first + self._rows.second_at.get(slot, count) : first + count] = 1
        return self._rows.staging.send([types])[0]


def _no_masks() -> None:
    """Every token is allowed."""


def _numbers(plan: StepPlan) -> list[HostArray]:
    """What an eager step sends; see `Runner._forward`."""
    ends = np.cumsum(plan.counts, dtype=np.int32)
    table = np.stack((plan.slots, plan.starts, plan.counts, plan.starts - ends + plan.counts))
    return [table, np.asarray(plan.tokens), *_sampled_rows(plan)]


def _table(plan: StepPlan) -> HostArray:
    """int32 [3, R]: slots, starts, counts."""
    return np.stack((plan.slots, plan.starts, plan.counts))


def _sampled_rows(plan: StepPlan) -> list[HostArray]:
    """Of the rows that are sampled: the last of each one's tokens in the step, slots, outputs so far; int64 [L]."""
    ends = np.cumsum(plan.counts, dtype=np.int64)
    sampled = np.flatnonzero(plan.flags & SAMPLE)
    return [ends[sampled] - 1, plan.slots[sampled].astype(np.int64), plan.outputs[sampled].astype(np.int64)]

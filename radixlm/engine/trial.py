"""Steps nobody asked for, run on the null page: to warm up, and to measure what device memory the largest ones take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from radixlm.attention.base import AttentionBackend
from radixlm.base.errors import CapacityError, RadixError
from radixlm.cache.pools.mha import MHAPool
from radixlm.config.capacity import GIB, chunk_graph_sizes, graph_sizes, most_running, most_step_tokens
from radixlm.config.card import ModelCard
from radixlm.config.resolve import Resolved
from radixlm.models.base import Model
from radixlm.protocol.arrays import I32, empty_i32
from radixlm.protocol.plan import HOST, LAST, SAMPLE, SlotInit, StepPlan
from radixlm.protocol.sampling import SamplingParams
from radixlm.runner.capture import CaptureReport
from radixlm.runner.memory import free_device_bytes
from radixlm.runner.rows import Rows
from radixlm.runner.runner import Runner
from radixlm.runner.sampler import LOGITS_ROWS
from radixlm.runner.staging import Staging

MARGIN_BYTES = (
    512 << 20
)  # for kernels not loaded yet, requests' penalties and biases, and what the device's other users do
TRIED_SIZES = 3  # so many sizes of graphs are captured to know what all will take
GREEDY = SamplingParams(temperature=0.0)
NUCLEUS = SamplingParams(temperature=0.7, top_p=0.9)


def null_step(
    counts: Sequence[int], decode_rows: int, params: SamplingParams = GREEDY, pools: bool = False, start: int = 0
) -> StepPlan:
    """A step of rows with `counts` tokens from `start` on, on slots 0, 1 ..., all sampled, or pooled where the model
    pools; page tables are left as they are."""
    rows = len(counts)
    zeros: I32 = np.zeros(rows, np.int32)
    flags: I32 = np.full(rows, (LAST if pools else SAMPLE) | HOST, np.int32)
    flags[:decode_rows] = SAMPLE
    return StepPlan(
        step=0,
        decode_rows=decode_rows,
        slots=np.arange(rows, dtype=np.int32),
        starts=np.full(rows, start, np.int32),
        counts=np.array(counts, np.int32),
        flags=flags,
        outputs=zeros,
        tokens=np.zeros(sum(counts[decode_rows:]), np.int32),
        page_updates=np.zeros((0, 3), np.int32),
        started=[SlotInit(slot, params, (), empty_i32(), empty_i32()) for slot in range(rows)],
    )


def run_null_step(runner: Runner, plan: StepPlan) -> None:
    """Run it to its end; RadixError when it fails."""
    result = runner.retire(runner.launch(plan))
    if result.error is not None:
        raise RadixError(f"the model does not run: {result.error}")


@dataclass(frozen=True)
class Room:
    """What the KV pool may take (`bytes`), and what was measured to be needed beside it: page tables and the largest
    step (`step_bytes`), and all graphs (`graphs_bytes`)."""

    bytes: int
    step_bytes: int
    graphs_bytes: int


def measure_room(
    resolved: Resolved,
    card: ModelCard,
    model: Model,
    attention: Callable[[MHAPool], AttentionBackend],
    kv_dtype: torch.dtype,
    pages_per_slot: int,
) -> Room:
    """Device memory left for the KV pool beside all that the largest steps need, found by running them.

    To be called when the weights are loaded and nothing else is. CapacityError when not even the steps fit.
    """
    torch.cuda.empty_cache()
    free_bytes = free_device_bytes()
    tokens = most_step_tokens(resolved)
    try:
        taken = _measure(resolved, card, model, attention, kv_dtype, pages_per_slot, tokens)
    except torch.OutOfMemoryError:
        taken = None
    torch.cuda.empty_cache()
    if taken is None:
        raise CapacityError(
            f"not enough memory: {free_bytes / GIB:.2f} GiB are left beside the weights, too little for a step of "
            f"{tokens} tokens; set a smaller --chunked-prefill-size or --max-running-requests"
        )
    step_bytes, graphs_bytes = taken
    spare_bytes = MARGIN_BYTES + step_bytes // 4  # requests come in other sizes than these: memory fragments
    return Room(free_bytes - step_bytes - graphs_bytes - spare_bytes, step_bytes, graphs_bytes)


def _measure(
    resolved: Resolved,
    card: ModelCard,
    model: Model,
    attention: Callable[[MHAPool], AttentionBackend],
    kv_dtype: torch.dtype,
    pages_per_slot: int,
    tokens: int,
) -> tuple[int, int]:
    """(step_bytes, graphs_bytes) of `Room`. All that it makes is gone when it returns."""
    free_bytes = free_device_bytes()
    device = torch.device("cuda")
    pool = MHAPool(1, resolved.page_size, card.kv_layers, card.num_kv_heads, card.head_dim, kv_dtype, device)
    rows = Rows(most_running(resolved), pages_per_slot, card.vocab_size, Staging(device))
    runner = Runner(model, attention(pool), rows)
    _run_largest(runner, resolved, tokens, card.pooling is not None)
    step_bytes = free_bytes - free_device_bytes()  # the allocator still holds what the steps have used
    graphs_bytes = 0
    if runner.capturable:
        graphs_bytes += _graphs_bytes(runner.capture, graph_sizes(resolved, most_running(resolved)))
    if runner.chunks_capturable:
        graphs_bytes += _graphs_bytes(runner.capture_chunks, chunk_graph_sizes(resolved))
    return step_bytes, graphs_bytes


def _run_largest(runner: Runner, resolved: Resolved, tokens: int, pools: bool) -> None:
    """The largest prefill step, of many short prompts and of a long one. OutOfMemoryError when it does not fit."""
    sampled = min(LOGITS_ROWS, most_running(resolved), tokens)
    many = [min(tokens // sampled, resolved.context_len)] * sampled
    many[0] = min(many[0] + tokens % sampled, resolved.context_len)
    for counts in (many, [min(tokens, resolved.context_len)]):
        result = runner.retire(runner.launch(null_step(counts, 0, NUCLEUS, pools)))
        if result.error is not None and result.error.startswith("OutOfMemoryError"):
            raise torch.OutOfMemoryError(result.error)
        if result.error is not None:
            raise RadixError(f"the model does not run: {result.error}")


def _graphs_bytes(capture: Callable[[Sequence[int]], CaptureReport], sizes: Sequence[int]) -> int:
    """What graphs of all `sizes` will take: the largest, and for each other the mean of a few, in the same memory."""
    if not sizes:
        return 0
    *others, largest = sizes
    largest_bytes = capture([largest]).bytes
    some = others[:: max(len(others) // TRIED_SIZES, 1)]
    return largest_bytes + (capture(some).bytes * len(others) // len(some) if some else 0)

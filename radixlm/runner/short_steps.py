"""Steps of few tokens on the CPU: a model's layers recorded once as a list of native kernel calls. Knows no plan.

Where kernels have little to do, the Python between them takes a good part of a step; a recorded step is one call.
Results are the same to the bit, since the same kernels run in the same order.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.base import AttentionBackend, ForwardContext, RowBatch
from radixlm.attention.native_cpu import NativeCPU
from radixlm.base import log
from radixlm.kernels.native.library import library
from radixlm.kernels.native.program import NotRecordableError, Program
from radixlm.models.base import Model
from radixlm.models.decoder import Decoder
from radixlm.runner.rows import Rows

logger = log.get(__name__)
MOST_TOKENS = 1024  # a chunk and the rows that decode beside it; beyond that Python is a very small part of a step
RECORDED_TOKENS = 4  # done while recording; the buffers are made for as many as may come


@dataclass(frozen=True)
class ShortSteps:
    """A decoder's layers over static buffers of `most_tokens` tokens: up to the last attention, and what follows it."""

    most_tokens: int
    _model: Decoder
    _attention: NativeCPU
    _meta: Any
    _inputs: tuple[Tensor, ...]
    _attend: Program
    _finish: Program

    @staticmethod
    @torch.inference_mode()
    def record(
        model: Model, attention: AttentionBackend, rows: Rows, most_tokens: int = MOST_TOKENS
    ) -> "ShortSteps | None":
        """Record, or None where something else than native kernels computes; the reason is logged."""
        kernels = library()
        if kernels is None or not isinstance(model, Decoder) or not isinstance(attention, NativeCPU):
            return None
        batch = _padding(rows, attention.pool.page_size, RECORDED_TOKENS)
        context = ForwardContext(batch, attention, attention.prepare(batch))
        small = model.begin(torch.zeros(RECORDED_TOKENS, dtype=torch.int64), context)
        residual, cos, sin = inputs = tuple(x.new_empty(most_tokens, *x.shape[1:]) for x in small)
        for static, x in zip(inputs, small, strict=True):
            static[:RECORDED_TOKENS].copy_(x)

        first = slice(RECORDED_TOKENS)
        try:
            attend = Program(
                kernels,
                lambda: model.attend(residual[first], cos[first], sin[first], context),
                RECORDED_TOKENS,
                most_tokens,
            )
            finish = Program(
                kernels, lambda: model.finish(attend.out[first], residual[first]), RECORDED_TOKENS, most_tokens
            )
        except NotRecordableError as error:
            logger.info("steps are not recorded: %s", error)
            return None
        return ShortSteps(most_tokens, model, attention, context.meta, inputs, attend, finish)

    def forward(
        self, input_ids: Tensor, batch: RowBatch, embeds: tuple[Tensor, Tensor] | None, wanted: Tensor | None = None
    ) -> Tensor:
        """`Model.forward` of at most `most_tokens` tokens."""
        tokens = len(input_ids)
        self._attention.refresh(self._meta, batch)
        context = ForwardContext(batch, self._attention, self._meta, embeds)
        for static, new in zip(self._inputs, self._model.begin(input_ids, context), strict=True):
            static[:tokens].copy_(new)
        self._attend.run(tokens)
        if wanted is not None:
            tokens = len(wanted)
            for x in (self._attend.out, self._inputs[0]):
                x[:tokens].copy_(x.index_select(0, wanted))
        if tokens:
            self._finish.run(tokens)
        return self._finish.out[:tokens].clone()


def _padding(rows: Rows, page_size: int, tokens: int) -> RowBatch:
    """`tokens` decode rows of the padding slot, which read and write the null page."""
    slots, starts, counts = (
        np.full(tokens, rows.padding_slot, np.int32),
        np.zeros(tokens, np.int32),
        np.ones(tokens, np.int32),
    )
    return RowBatch(
        slots=torch.from_numpy(slots),
        starts=torch.from_numpy(starts),
        counts=torch.from_numpy(counts),
        positions=torch.zeros(tokens, dtype=torch.int64),
        kv_index=torch.zeros(tokens, dtype=torch.int64),
        page_table=rows.page_table,
        page_size=page_size,
        decode_rows=tokens,
        slots_host=slots,
        starts_host=starts,
        counts_host=counts,
    )

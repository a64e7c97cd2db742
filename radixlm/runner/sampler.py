"""From logits to the next tokens of a step's sampled rows. Owns nothing: state lies in Rows, arithmetic in kernels."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from radixlm.kernels.logprobs import token_logprobs
from radixlm.kernels.masks import apply_token_masks
from radixlm.kernels.sampling import highest, sample, sample_rows
from radixlm.models.base import Model
from radixlm.protocol.arrays import I32, I64
from radixlm.protocol.plan import NOT_FINITE
from radixlm.runner.masks import TokenMasks
from radixlm.runner.rows import Rows
from radixlm.runner.staging import HostArray

LOGITS_ROWS = 1024  # so many rows' logits are in memory at once; more at once would not be faster


@dataclass(frozen=True)
class Drawn:
    """tokens: int64 [L]; logprobs: float32 [L], each one's by its raw logits, None where these were not kept."""

    tokens: Tensor
    logprobs: Tensor | None = None


def next_tokens(
    model: Model,
    rows: Rows,
    hidden: Tensor,
    slots: Tensor,
    outputs: Tensor,
    slots_host: I32,
    outputs_host: I32,
    masks: TokenMasks | None = None,
    read: bool = False,
) -> Drawn:
    """Sample one token for each of L rows and remember it in `rows`.

    hidden: [L, hidden_size]. slots: int64 [L]; outputs: int64 [L], how many output tokens each row had before; both
    also as they are on the host. masks: by place among the L rows. A token is NOT_FINITE where a row's logits hold NaN
    or +inf (its state is left with token 0). With `read` there are log probabilities where nothing changes the logits.
    """
    parts = [
        _next(
            model,
            rows,
            hidden[span],
            slots[span],
            outputs[span],
            slots_host[span],
            outputs_host[span],
            masks.within(span) if masks is not None else None,
            read,
        )
        for span in _spans(len(hidden))
    ]
    if len(parts) == 1:
        return parts[0]
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    return Drawn(torch.cat([p.tokens for p in parts]), torch.cat(logprobs) if len(logprobs) == len(parts) else None)


def draw_all(model: Model, rows: Rows, hidden: Tensor, slots: Tensor, outputs: Tensor, into: Drawn) -> None:
    """`next_tokens` on CUDA, where nothing changes the logits; may be captured in a graph."""
    for span in _spans(len(hidden)):
        logits = model.raw_logits(hidden[span])
        into.tokens[span].copy_(_draw(rows, logits, slots[span], outputs[span]))
        if into.logprobs is not None:
            into.logprobs[span].copy_(token_logprobs(logits, into.tokens[span]))


def _spans(rows: int) -> Iterator[slice]:
    """`rows` cut into pieces whose logits are made together."""
    return (slice(first, min(first + LOGITS_ROWS, rows)) for first in range(0, rows, LOGITS_ROWS))


def _next(
    model: Model,
    rows: Rows,
    hidden: Tensor,
    slots: Tensor,
    outputs: Tensor,
    slots_host: I32,
    outputs_host: I32,
    masks: TokenMasks | None,
    read: bool,
) -> Drawn:
    changed = changes_logits(rows, slots_host, outputs_host)
    kept = not changed and masks is None
    logits = model.raw_logits(hidden) if hidden.is_cuda and kept else model.logits(hidden)
    if changed:
        _adjust(rows, logits, slots_host, outputs_host)
    if masks is not None:
        apply_token_masks(logits, *rows.staging.send([masks.rows, masks.bits]))
    if hidden.is_cuda:
        tokens = _draw(rows, logits, slots, outputs)
    else:
        tokens = _draw_by_kind(rows, logits, slots, outputs, slots_host)
    penalized = [i for i, slot in enumerate(slots_host.tolist()) if slot in rows.penalties] if changed else []
    if penalized:
        table = rows.penalties.rows(slots_host[penalized].tolist())
        where, table_d = rows.staging.send([np.array(penalized, np.int64), table])
        rows.penalties.count(table_d, tokens.index_select(0, where).clamp_(min=0))
    return Drawn(tokens, token_logprobs(logits, tokens) if read and kept else None)


def changes_logits(rows: Rows, slots_host: I32, outputs_host: I32) -> bool:
    """Whether any row has penalties, a bias, or stop tokens that are still banned; asks the host only."""
    if rows.stop_ids and _banned(rows, slots_host, outputs_host):
        return True
    if not rows.penalties and not rows.bias:
        return False
    return any(slot in rows.penalties or slot in rows.bias for slot in slots_host.tolist())


def _draw(rows: Rows, logits: Tensor, slots: Tensor, outputs: Tensor) -> Tensor:
    """One token per row, each by its own parameters; asks the host nothing."""
    p = rows.parameters(slots)
    tokens = sample_rows(logits, p.temperature, p.top_k, p.top_p, p.min_p, p.seeds, outputs, p.greedy)
    rows.last_token.index_copy_(0, slots, tokens.clamp(min=0))
    return tokens


def _draw_by_kind(rows: Rows, logits: Tensor, slots: Tensor, outputs: Tensor, slots_host: I32) -> Tensor:
    """`_draw` with greedy, unfiltered and filtered rows apart, so that none pays for another's filter."""
    largest, first = highest(logits)
    greedy, candidates = rows.greedy_host[slots_host], rows.candidates_host[slots_host]
    tokens = first
    if not greedy.all():
        p = rows.parameters(slots)
        for members in (~greedy & (candidates == 0), ~greedy & (candidates > 0)):
            (where,) = np.nonzero(members)
            if len(where):
                i = torch.from_numpy(where)
                drawn = sample(
                    logits[i], p.temperature[i], p.top_k[i], p.top_p[i], p.min_p[i], p.seeds[i], outputs[i],
                    int(candidates[where].max()),
                )  # fmt: skip
                tokens.index_copy_(0, i, drawn)
    finite = largest < torch.inf  # NaN is not
    tokens = torch.where(finite, tokens, NOT_FINITE)
    rows.last_token.index_copy_(0, slots, tokens.clamp(min=0))
    return tokens


def _banned(rows: Rows, slots_host: I32, outputs_host: I32) -> list[int]:
    """The rows whose stop tokens may not come yet."""
    early = np.flatnonzero(outputs_host < rows.min_new_host[slots_host])
    return [i for i in early.tolist() if int(slots_host[i]) in rows.stop_ids]


def _adjust(rows: Rows, logits: Tensor, slots_host: I32, outputs_host: I32) -> None:
    """Penalties, logit bias and the ban on stop tokens before min_new_tokens, for the rows that have them."""
    slots = slots_host.tolist()
    vocab = np.int64(logits.shape[1])
    penalized = [i for i, slot in enumerate(slots) if slot in rows.penalties]
    biased = [i for i, slot in enumerate(slots) if slot in rows.bias]
    banned = _banned(rows, slots_host, outputs_host)
    bias = [rows.bias[slots[i]] for i in biased]
    nothing: I64 = np.empty(0, np.int64)
    arrays: list[HostArray] = [
        np.array(penalized, np.int64),
        rows.penalties.rows([slots[i] for i in penalized]),
        np.concatenate([nothing, *(i * vocab + ids for i, (ids, _) in zip(biased, bias, strict=True))]),
        np.concatenate([np.empty(0, np.float32), *(values for _, values in bias)]),
        np.concatenate([nothing, *(i * vocab + rows.stop_ids[slots[i]] for i in banned)]),
    ]
    where, table, bias_at, bias_values, ban_at = rows.staging.send(arrays)
    if penalized:
        rows.penalties.apply(logits, where, table)
    flat = logits.view(-1)
    if biased:
        flat.index_add_(0, bias_at, bias_values)
    if banned:
        flat.index_fill_(0, ban_at, -torch.inf)

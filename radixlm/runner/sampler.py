"""From logits to the next tokens of a step's sampled rows. Owns nothing: state lies in Rows, arithmetic in kernels."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlm.kernels.sampling import apply_penalties, sample
from radixlm.protocol.arrays import I32
from radixlm.protocol.plan import NOT_FINITE
from radixlm.runner.rows import Rows


def next_tokens(rows: Rows, logits: Tensor, slots_host: I32, outputs_host: I32) -> Tensor:
    """Sample one token for each of L rows and remember it in `rows`.

    logits: float32 [L, vocab], changed in place; slots_host: the rows' slots; outputs_host: how many output tokens each
    had before. Returns int64 [L]; NOT_FINITE where a row's logits hold NaN or +inf (its state is left with token 0).
    """
    slots = torch.from_numpy(slots_host.astype(np.int64)).to(logits.device)
    finite = _finite(logits)
    _adjust(rows, logits, slots_host, outputs_host)
    greedy = rows.greedy_host[slots_host]
    if greedy.all():
        tokens = logits.argmax(-1)
    else:
        positions = torch.from_numpy(outputs_host.astype(np.int64)).to(logits.device)
        tokens = torch.empty(len(slots), dtype=torch.int64, device=logits.device)
        candidates = rows.candidates_host[slots_host]
        for members in (greedy, ~greedy & (candidates == 0), ~greedy & (candidates > 0)):
            _fill(tokens, rows, logits, slots, positions, members, greedy, candidates)
    tokens = torch.where(finite, tokens, 0)
    rows.last_token[slots] = tokens
    if rows.penalties:
        penalized = [i for i, slot in enumerate(slots_host.tolist()) if slot in rows.penalties]
        if penalized:
            table = rows.penalties.rows([int(slots_host[i]) for i in penalized])
            rows.penalties.count(table, tokens[penalized])
    return torch.where(finite, tokens, NOT_FINITE)


def _finite(logits: Tensor) -> Tensor:
    """Whether each row holds neither NaN nor +inf: bool [L]."""
    highest = logits.amax(-1)
    return (highest == highest) & (highest < torch.inf)


def _fill(
    tokens: Tensor,
    rows: Rows,
    logits: Tensor,
    slots: Tensor,
    positions: Tensor,
    members: NDArray[np.bool_],
    greedy: NDArray[np.bool_],
    candidates: I32,
) -> None:
    """Sample the rows of one kind (greedy, unfiltered, filtered), so that no row pays for another's filter."""
    (where,) = np.nonzero(members)
    if not len(where):
        return
    index = torch.from_numpy(where).to(logits.device)
    part = logits if len(where) == len(slots) else logits[index]
    if greedy[where[0]]:
        tokens[index] = part.argmax(-1)
        return
    s = slots[index]
    tokens[index] = sample(
        part,
        rows.temperature[s],
        rows.top_k[s],
        rows.top_p[s],
        rows.min_p[s],
        rows.seed[s],
        positions[index],
        int(candidates[where].max()),
    )


def _adjust(rows: Rows, logits: Tensor, slots_host: I32, outputs_host: I32) -> None:
    """Penalties, logit bias and the ban on stop tokens before min_new_tokens, for the rows that have them."""
    slots = slots_host.tolist()
    if rows.penalties:
        some = [i for i, slot in enumerate(slots) if slot in rows.penalties]
        if some:
            table = rows.penalties.rows([slots[i] for i in some])
            part = logits[some]
            repetition, frequency, presence = rows.penalties.factors[table].unbind(1)
            seen, counts = rows.penalties.seen[table], rows.penalties.counts[table]
            apply_penalties(part, seen, counts, repetition, frequency, presence)
            logits[some] = part
    if rows.bias:
        for i, slot in enumerate(slots):
            if slot in rows.bias:
                ids, values = rows.bias[slot]
                logits[i, ids] += values
    if rows.stop_ids:
        early = outputs_host < rows.min_new_host[slots_host]
        for i in np.nonzero(early)[0].tolist():
            if slots[i] in rows.stop_ids:
                logits[i, rows.stop_ids[slots[i]]] = -torch.inf

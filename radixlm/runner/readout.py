"""What rows are read out for beside their next token: log probabilities and hidden vectors. Knows plans, not requests.

Log probabilities are of the raw logits' softmax, before penalties, bias, masks and temperature, in float32. Logits are
made for a few positions at a time, so that a long prompt with a large vocabulary needs no more memory than sampling.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from radixlm.kernels.logprobs import log_sums
from radixlm.models.base import Model
from radixlm.protocol.arrays import F32, I32, I64, empty_i32
from radixlm.protocol.extras import Extras, LogprobOptions, TokenLogprobs
from radixlm.protocol.plan import SAMPLE, Reading, StepPlan
from radixlm.runner.rows import Rows
from radixlm.runner.staging import HostArray, event_after

POSITIONS = 128  # scored at once; enough to keep a device busy
_NOTHING_SCORED = LogprobOptions(0)
_NO_VALUES: F32 = np.empty(0, np.float32)


@dataclass(frozen=True)
class _Part:
    """One row's share of what is read out: `prompt` positions scored for prompt tokens, then one for its sample."""

    row: int
    options: LogprobOptions
    prompt: int
    output: int
    hidden: int

    def extras(self, scores: TokenLogprobs, first: int, hidden: F32) -> Extras:
        """Its extras; `scores` are the step's, of which its own begin at `first`."""
        middle = first + self.prompt
        return Extras(
            prompt=self._cut(scores, first, middle) if self.prompt else None,
            output=self._cut(scores, middle, middle + self.output) if self.output else None,
            hidden=hidden if self.hidden else None,
        )

    def _cut(self, scores: TokenLogprobs, first: int, last: int) -> TokenLogprobs:
        top, chosen = self.options.top, len(self.options.token_ids)
        return TokenLogprobs(
            tokens=scores.tokens[first:last],
            values=scores.values[first:last],
            top_tokens=scores.top_tokens[first:last, :top] if top else empty_i32(),
            top_values=scores.top_values[first:last, :top] if top else _NO_VALUES,
            chosen_values=scores.chosen_values[first:last, :chosen] if chosen else _NO_VALUES,
        )


@dataclass
class _Wanted:
    """All that a step is read out for, in row order. Index arrays point into the step's tokens.

    where: positions whose logits are scored. which: their tokens, as indices into the prompt `targets` followed by the
    step's samples. owner: their row among `parts`. hidden: positions whose vectors are wanted.
    """

    parts: list[_Part] = field(default_factory=list)
    targets: list[I32] = field(default_factory=list)
    where: list[I64] = field(default_factory=list)
    which: list[I64] = field(default_factory=list)
    owner: list[I64] = field(default_factory=list)
    hidden: list[I64] = field(default_factory=list)


@dataclass(frozen=True)
class Readout:
    """A step's readings on their way to the host: there once `event` has come (at once on the CPU).

    scores: the columns of TokenLogprobs, over all positions that are scored; hidden: float32 [n, hidden_size].
    """

    parts: Sequence[_Part]
    scores: Sequence[Tensor]
    hidden: Tensor
    event: torch.cuda.Event | None

    def wait(self) -> dict[int, Extras]:
        """The extras by row."""
        if self.event is not None:
            self.event.synchronize()
        scores = TokenLogprobs(*(column.numpy() for column in self.scores))
        hidden: F32 = self.hidden.numpy()
        found: dict[int, Extras] = {}
        scored = read = 0
        for part in self.parts:
            found[part.row] = part.extras(scores, scored, hidden[read : read + part.hidden])
            scored += part.prompt + part.output
            read += part.hidden
        return found


@dataclass(frozen=True)
class SampleReadout:
    """`Readout` where nothing but samples' own log probabilities is wanted. By row that is read: where it stands in
    tokens (int32 [L]) and logprobs (float32 [L])."""

    places: dict[int, int]
    tokens: Tensor
    logprobs: Tensor
    event: torch.cuda.Event | None

    def wait(self) -> dict[int, Extras]:
        """The extras by row."""
        if self.event is not None:
            self.event.synchronize()
        tokens, values = self.tokens.numpy(), self.logprobs.numpy()
        rest = (empty_i32(), _NO_VALUES, _NO_VALUES)
        return {
            row: Extras(output=TokenLogprobs(tokens[at : at + 1], values[at : at + 1], *rest))
            for row, at in self.places.items()
        }


def reads_samples_only(rows: Rows, plan: StepPlan) -> bool:
    """Whether a step is read out, and for nothing but the log probabilities of what it samples."""
    for row, reading in plan.readings.items():
        options = rows.logprobs.get(int(plan.slots[row]))
        if reading.hidden is not None or len(reading.targets) or options is None or options.top or options.token_ids:
            return False
    return bool(plan.readings)


def read_samples(plan: StepPlan, tokens: Tensor, logprobs: Tensor) -> SampleReadout:
    """`read_out` of a step that `reads_samples_only`; tokens: int64 [L], logprobs: float32 [L], of its sampled rows.

    Both may be overwritten by what is launched after this.
    """
    place = np.cumsum((plan.flags & SAMPLE) != 0) - 1
    places = {row: int(place[row]) for row in plan.readings}
    landed = _to_host(tokens.clamp(min=0).to(torch.int32)), _to_host(_printable(logprobs.clone()))
    return SampleReadout(places, *landed, event_after(tokens))


def read_out(model: Model, rows: Rows, plan: StepPlan, hidden: Tensor, samples: Tensor | None) -> Readout:
    """Start reading out a step. hidden: [T, hidden_size], of all its tokens; samples: int64 [L], of its sampled rows.

    Asks the device nothing; both may be overwritten by what is launched after this.
    """
    wanted = _wanted(rows, plan)
    options = [part.options for part in wanted.parts]
    most_chosen = max(len(one.token_ids) for one in options)
    chosen = np.zeros((len(options), most_chosen), np.int64)
    for index, one in enumerate(options):
        chosen[index, : len(one.token_ids)] = one.token_ids
    nothing: I64 = np.empty(0, np.int64)
    arrays: list[HostArray] = [
        np.concatenate([nothing, *wanted.targets]),
        *(np.concatenate([nothing, *part]) for part in (wanted.where, wanted.which, wanted.owner, wanted.hidden)),
        chosen,
    ]
    targets, where, which, owner, vectors, chosen_d = rows.staging.send(arrays)
    known = targets if samples is None else torch.cat((targets, samples.clamp(min=0)))
    tokens = known.index_select(0, which)
    top = max(one.top for one in options)
    scores = _scored(model, hidden, where, tokens, top, chosen_d, owner)
    columns = [tokens.to(torch.int32), *scores, hidden.index_select(0, vectors).float()]
    landed = [_to_host(column) for column in columns]
    return Readout(wanted.parts, landed[:-1], landed[-1], event_after(hidden))


def _wanted(rows: Rows, plan: StepPlan) -> _Wanted:
    wanted = _Wanted()
    ends = np.cumsum(plan.counts, dtype=np.int64)
    sampled = (plan.flags & SAMPLE) != 0
    place = np.cumsum(sampled) - 1  # of a sampled row among the samples
    prompt_total = sum(len(reading.targets) for reading in plan.readings.values())
    targets = 0
    for row, reading in sorted(plan.readings.items()):
        options = rows.logprobs.get(int(plan.slots[row]))
        scored = len(reading.targets)
        output = int(options is not None and sampled[row])
        begin, end = int(ends[row] - plan.counts[row]), int(ends[row])
        _add_scored(wanted, reading, begin, targets)
        if output:
            wanted.where.append(np.array([end - 1]))
            wanted.which.append(np.array([prompt_total + place[row]]))
        wanted.owner.append(np.full(scored + output, len(wanted.parts)))
        vectors = np.arange(end if reading.hidden is None else begin + reading.hidden, end)
        wanted.hidden.append(vectors)
        wanted.parts.append(_Part(row, options or _NOTHING_SCORED, scored, output, len(vectors)))
        targets += scored
    return wanted


def _add_scored(wanted: _Wanted, reading: Reading, begin: int, targets: int) -> None:
    """The prompt tokens of a row that begins at `begin`; `targets` prompt tokens come before its own."""
    count = len(reading.targets)
    wanted.targets.append(reading.targets)
    wanted.where.append(np.arange(count) + begin + reading.first)
    wanted.which.append(np.arange(count) + targets)


def _scored(
    model: Model, hidden: Tensor, where: Tensor, tokens: Tensor, top: int, chosen: Tensor, owner: Tensor
) -> list[Tensor]:
    """values [P], top_tokens [P, top], top_values [P, top], chosen_values [P, C] for P positions `where` of `hidden`.

    tokens: int64 [P], what came after them; chosen: int64 [rows, C] and owner: int64 [P], which of its rows is whose.
    """
    count, device = len(where), hidden.device
    values = torch.empty(count, device=device)
    top_tokens = torch.empty(count, top, dtype=torch.int32, device=device)
    top_values = torch.empty(count, top, device=device)
    chosen_values = torch.empty(count, chosen.shape[1], device=device)
    for span in _spans(count):
        logits = model.raw_logits(hidden.index_select(0, where[span]))
        total = log_sums(logits)[:, None]
        values[span] = (logits.gather(1, tokens[span, None]).float() - total).squeeze(1)
        if top:
            highest, ids = logits.topk(top, dim=-1)
            top_values[span] = highest.float() - total
            top_tokens[span] = ids.to(torch.int32)
        if chosen.shape[1]:
            chosen_values[span] = logits.gather(1, chosen.index_select(0, owner[span])).float() - total
    return [_printable(values), top_tokens, _printable(top_values), _printable(chosen_values)]


def _printable(values: Tensor) -> Tensor:
    """JSON has no word for less than the smallest number."""
    lowest = torch.finfo(torch.float32).min
    return values.nan_to_num_(nan=lowest, neginf=lowest)


def _spans(count: int) -> Iterator[slice]:
    return (slice(first, min(first + POSITIONS, count)) for first in range(0, count, POSITIONS))


def _to_host(tensor: Tensor) -> Tensor:
    """A copy under way to pinned memory; on the CPU the tensor itself."""
    return tensor.to("cpu", non_blocking=True)

"""Sampling and the logit changes before it, vectorized over rows. Torch reference; knows tensors, not requests.

Noise is a pure function of (seed, output position, vocabulary column), so a row's token depends on nothing else in the
batch. Sampling takes the largest p / e with e exponential, which draws from p exactly (the Gumbel-max trick:
Maddison et al., arXiv 1411.0030).
"""

import torch
from torch import Tensor

from radixlm.kernels import triton

SPAN = 128  # logits whose largest is found together
NOT_FINITE = -2  # in place of a token; the value of `protocol.plan.NOT_FINITE`
_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
_LOW_32 = 0xFFFFFFFF
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The splitmix64 finalizer (Steele, Lea, Flood, 2014) on int64."""
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def exponential_noise(seeds: Tensor, positions: Tensor, columns: Tensor) -> Tensor:
    """Standard exponential noise, float32 [R, C], for int64 seeds [R], positions [R] and columns [C] or [R, C].

    Seed and position are mixed in 64 bits, columns in 32, which is fast on devices (Wellons' hash prospector).
    """
    stream = _mix(_mix(seeds + _GOLDEN) + positions * _GOLDEN)[:, None]
    x = (columns * 0x9E3779B9 + (stream & _LOW_32)) & _LOW_32
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _LOW_32
    x = ((x ^ (x >> 15) ^ _shift(stream, 32)) * 0x735A2D97) & _LOW_32
    bits = (x ^ (x >> 15)) >> 9
    # 23 bits: the half is still exact in float32, so that no noise is 0, by which a probability of 0 would win.
    uniform = (bits.to(torch.float32) + 0.5) * (1.0 / (1 << 23))
    return uniform.log_().neg_()


def highest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row, [R], and the first place where it stands, int64 [R]; logits: [R, V]. NaN is above all.

    `logits.max(-1)` keeps places number by number; the largest of neighbours is found in vectors, a sixth of its time.
    """
    if logits.shape[1] % SPAN:
        return logits.max(-1)
    spans = logits.unflatten(1, (-1, SPAN))
    values, span = spans.amax(-1).max(-1)
    inside = spans[torch.arange(len(logits), device=logits.device), span].max(-1).indices
    return values, span * SPAN + inside


def apply_penalties(
    logits: Tensor, where: Tensor, table: Tensor, seen: Tensor, counts: Tensor, factors: Tensor
) -> None:
    """Change rows `where` (int64 [N], distinct) of logits (float32 [L, V]) by rows `table` (int64 [N]) of the others.

    seen: bool [S, V], tokens of prompt or output; counts: int32 [S, V], outputs only; factors: float32 [S, 3].
    Repetition, the first factor (arXiv 1909.05858), divides positive and multiplies negative logits of seen tokens;
    then frequency, the second, times the count, and presence, the third, are subtracted.
    """
    if logits.is_cuda and triton.available():
        from radixlm.kernels.triton import penalties as device

        device.apply_penalties(logits, where, table, seen, counts, factors)
    else:
        apply_penalties_reference(logits, where, table, seen, counts, factors)


def apply_penalties_reference(
    logits: Tensor, where: Tensor, table: Tensor, seen: Tensor, counts: Tensor, factors: Tensor
) -> None:
    """`apply_penalties` on any device."""
    part, often = logits.index_select(0, where), counts[table]
    repetition, frequency, presence = factors[table, :, None].unbind(1)
    scaled = torch.where(part > 0, part / repetition, part * repetition)
    part = torch.where(seen[table], scaled, part)
    part -= frequency * often
    part -= presence * (often > 0)
    logits.index_copy_(0, where, part)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    candidates: int,
) -> Tensor:
    """Draw one token per row: int64 [R] from logits float32 [R, V].

    temperature > 0, top_k >= 1, top_p in (0, 1], min_p in [0, 1]: [R]. A token is kept when it is among the top_k, the
    probability before it is at most top_p, and it has at least min_p of the largest probability, all measured on the
    unfiltered distribution. `candidates` 0 promises that no row has a filter; otherwise the kept tokens are first
    sought among that many, and the whole vocabulary is sorted only when they are not enough.
    """
    probs = torch.softmax(logits / temperature[:, None], dim=-1)
    if candidates == 0:
        columns = torch.arange(probs.shape[1], device=probs.device)
        return (probs / exponential_noise(seeds, positions, columns)).argmax(-1)
    values, columns, keep = _kept(probs, top_k, top_p, min_p, candidates)
    noise = exponential_noise(seeds, positions, columns)
    best = torch.where(keep, values / noise, -1.0).argmax(-1, keepdim=True)
    return columns.gather(1, best).squeeze(1)


def sample_rows(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    greedy: Tensor,
) -> Tensor:
    """One token per row, whatever mixture the rows are: int64 [L] from logits float32 or bfloat16 [L, V].

    The other arguments are [L]: greedy bool, the rest as `sample` takes them. Rows with greedy take the first largest
    logit. NOT_FINITE stands for a row whose logits hold NaN or +inf. On CUDA nothing is read by the host, and of logits
    that are exactly equal at the edge of a filter all are kept.
    """
    if logits.is_cuda and triton.available():
        from radixlm.kernels.triton import sampling as device

        return device.sample_rows(logits, temperature, top_k, top_p, min_p, seeds, positions, greedy, NOT_FINITE)
    return sample_rows_reference(logits, temperature, top_k, top_p, min_p, seeds, positions, greedy)


def sample_rows_reference(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    greedy: Tensor,
) -> Tensor:
    """`sample_rows` out of `sample`, on any device."""
    logits = logits.float()
    highest, first = logits.max(-1)
    finite = (highest == highest) & (highest < torch.inf)
    usable = torch.where((finite & (highest > -torch.inf))[:, None], logits, 0.0)
    drawn = sample(usable, temperature, top_k, top_p, min_p, seeds, positions, logits.shape[1])
    tokens = torch.where(greedy, first, torch.where(highest > -torch.inf, drawn, 0))
    return torch.where(finite, tokens, NOT_FINITE)


def _kept(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, candidates: int) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities in falling order, their columns, and which are kept: each [R, C] with C as small as is exact."""
    vocab = probs.shape[1]
    width = min(vocab, candidates)
    while True:
        values, columns = probs.topk(width, dim=-1)
        total = values.cumsum(-1)
        keep = (total - values <= top_p[:, None]) & (values >= min_p[:, None] * values[:, :1])
        keep &= torch.arange(width, device=probs.device) < top_k[:, None]
        enough = width == vocab or not bool((keep[:, -1] & (top_k > width)).any())
        if enough:
            return values, columns, keep
        width = vocab

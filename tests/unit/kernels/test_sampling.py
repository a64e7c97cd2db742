"""The sampling kernels against their definitions."""

import pytest
import torch

from radixlm.kernels.sampling import SPAN, apply_penalties, exponential_noise, highest, sample

VOCAB = 500
ROWS = 20_000


def draw(
    logits: torch.Tensor,
    top_k: int = VOCAB,
    top_p: float = 1.0,
    min_p: float = 0.0,
    first: int = 64,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Token frequencies of ROWS rows that share one logits vector."""
    filtered = top_k < VOCAB or top_p < 1 or min_p > 0
    tokens = sample(
        logits.expand(ROWS, -1),
        torch.full((ROWS,), temperature),
        torch.full((ROWS,), top_k),
        torch.full((ROWS,), top_p),
        torch.full((ROWS,), min_p),
        torch.full((ROWS,), 11),
        torch.arange(ROWS),
        first if filtered else 0,
    )
    return torch.bincount(tokens, minlength=VOCAB) / ROWS


def chi_square(observed: torch.Tensor, expected: torch.Tensor) -> float:
    """Per degree of freedom, over the tokens that should occur; near 1 when the draws follow `expected`."""
    kept = expected > 0
    terms = (observed[kept] - expected[kept]) ** 2 / expected[kept] * ROWS
    return float(terms.sum() / max(int(kept.sum()) - 1, 1))


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 2


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_unfiltered_follows_softmax(logits: torch.Tensor, temperature: float) -> None:
    assert chi_square(draw(logits, temperature=temperature), torch.softmax(logits / temperature, 0)) < 1.4


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(7, 1.0, 0.0), (VOCAB, 0.8, 0.0), (VOCAB, 1.0, 0.1), (30, 0.9, 0.02), (1, 1.0, 0.0)]
)
@pytest.mark.parametrize("first", [4, 64, VOCAB])
def test_filters_keep_exactly_the_right_tokens(
    logits: torch.Tensor, top_k: int, top_p: float, min_p: float, first: int
) -> None:
    probs = torch.softmax(logits, 0)
    values, order = probs.sort(descending=True)
    before = values.cumsum(0) - values
    kept = (torch.arange(VOCAB) < top_k) & (before <= top_p) & (values >= min_p * values[0])
    expected = torch.zeros(VOCAB)
    expected[order[kept]] = values[kept] / values[kept].sum()
    observed = draw(logits, top_k, top_p, min_p, first)
    assert set(observed.nonzero().flatten().tolist()) <= set(order[kept].tolist())
    assert chi_square(observed, expected) < 2.0


def test_a_row_does_not_depend_on_its_neighbours(logits: torch.Tensor) -> None:
    batch = torch.randn(5, VOCAB)
    batch[3] = logits
    ones = torch.ones(5)
    seeds, positions = torch.tensor([9, 8, 7, 1234, 5]), torch.tensor([0, 4, 2, 17, 3])
    k = torch.full((5,), VOCAB)
    for candidates in (0, 16, VOCAB):
        many = sample(batch, ones, k, ones, ones * 0, seeds, positions, candidates)
        one = sample(batch[3:4], ones[:1], k[:1], ones[:1], ones[:1] * 0, seeds[3:4], positions[3:4], candidates)
        assert int(many[3]) == int(one[0])


def test_noise_is_exponential_and_uncorrelated_between_positions() -> None:
    noise = exponential_noise(torch.tensor([5, 5, 6]), torch.tensor([0, 1, 0]), torch.arange(100_000))
    assert torch.isfinite(noise).all() and (noise > 0).all()
    assert (noise.mean(1) - 1).abs().max() < 0.02 and (noise.var(1) - 1).abs().max() < 0.05
    assert torch.corrcoef(noise).triu(1).abs().max() < 0.02


def test_penalties() -> None:
    logits = torch.tensor([[7.0, 7.0, 7.0, 7.0], [2.0, -2.0, 1.0, 0.5]])
    seen = torch.tensor([[True, True, False, True], [True, True, True, True]])
    counts = torch.tensor([[3, 0, 0, 1], [9, 9, 9, 9]], dtype=torch.int32)
    factors = torch.tensor([[2.0, 0.1, 0.5], [9.0, 9.0, 9.0]])
    apply_penalties(logits, torch.tensor([1]), torch.tensor([0]), seen, counts, factors)
    want = torch.tensor([[7.0, 7.0, 7.0, 7.0], [1.0 - 0.3 - 0.5, -4.0, 1.0, 0.25 - 0.1 - 0.5]])
    torch.testing.assert_close(logits, want)


@pytest.mark.parametrize("vocab", [SPAN, 5 * SPAN, 5 * SPAN + 1, 7])
def test_highest_is_the_first_of_the_largest(vocab: int) -> None:
    logits = torch.randint(-3, 4, (64, vocab), generator=torch.Generator().manual_seed(vocab)).float()
    logits[1] = -torch.inf
    logits[2, vocab // 2 :] = torch.inf
    logits[3, vocab - 1] = torch.nan
    values, places = highest(logits)
    for row, value, place in zip(logits, values, places.tolist(), strict=True):
        wanted = row.isnan() if row.isnan().any() else row == row.max()
        assert place == wanted.nonzero()[0] and torch.equal(row[place].isnan(), value.isnan())
        assert value.isnan() or value == row[place]

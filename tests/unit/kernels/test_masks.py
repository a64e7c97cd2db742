"""Token masks over logits: what bits forbid is -inf, and nothing else changes."""

import pytest
import torch

from radixlm.kernels.masks import apply_token_masks


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize("rows", [[0, 1, 2], [1], [0, 2], []])
def test_bits_forbid(vocab: int, rows: list[int]) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(3, vocab, generator=generator)
    allowed = torch.rand(len(rows), -(-vocab // 32) * 32, generator=generator) < 0.5
    weights = 2 ** torch.arange(32, dtype=torch.int64)
    words = (allowed.reshape(len(rows), -(-vocab // 32), 32) * weights).sum(-1)
    bits = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    expected = logits.clone()
    for place, row in enumerate(rows):
        expected[row, ~allowed[place, :vocab]] = -torch.inf
    apply_token_masks(logits, torch.tensor(rows, dtype=torch.int64), bits)
    assert torch.equal(logits, expected)

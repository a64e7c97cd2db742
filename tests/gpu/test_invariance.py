"""Deterministic inference: a row's bits do not depend on its company, from one matrix product to whole answers."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from radixlm.protocol.sampling import SamplingParams
from tests.helpers.device import CUDA, DEVICE, needs_cuda, needs_kernels
from tests.helpers.invariance import answers, make_model

RUNS = 50


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16] if CUDA else [torch.float32])
@pytest.mark.parametrize(("n", "k"), [(768, 1024), (130, 100), (4096, 3072)] if CUDA else [(70, 100)])
def test_a_matrix_product_of_any_rows_is_that_of_each(n: int, k: int, dtype: torch.dtype) -> None:
    from radixlm.kernels.triton.matmul import invariant_linear

    rows = 700 if CUDA else 70
    x = torch.randn(rows, k, device=DEVICE).to(dtype)
    weight = (torch.randn(n, k, device=DEVICE) * k**-0.5).to(dtype)
    bias = torch.randn(n, device=DEVICE).to(dtype)
    whole = invariant_linear(x, weight, bias)
    want = F.linear(x.double(), weight.double(), bias.double())
    bound = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    assert (whole.double() - want).abs().max() < bound * want.abs().max()
    spans = [(0, 1), (rows - 1, rows), (3, 10), (5, 69)]
    for first, last in [*spans, (100, 165), (40, 296), (0, 300)] if CUDA else spans:
        part = invariant_linear(x[first:last], weight, bias)
        assert torch.equal(part, whole[first:last]), (first, last)


@needs_cuda
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_new_tokens=48, temperature=0.0),
        SamplingParams(max_new_tokens=48, seed=5, temperature=0.9, top_p=0.8, top_k=400),
    ],
    ids=["greedy", "sampled"],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_one_prompt_has_one_answer(dtype: str, params: SamplingParams, tmp_path: Path) -> None:
    loaded, card = make_model(tmp_path, torch.device("cuda"), getattr(torch, dtype))
    got = answers(loaded, card, params, RUNS, device="cuda", dtype=dtype)
    assert len({tuple(tokens) for tokens in got}) == 1
    assert len(got[0]) > 8

"""Token masks on the device: the kernel and its reference, and constrained requests beside captured decode steps."""

import re

import msgspec
import pytest
import torch

from radixlm.kernels.masks import apply_token_masks_reference
from radixlm.loader.dummy import fill_dummy
from radixlm.loader.weights import LoadedModel
from radixlm.models.table import ARCHITECTURES
from tests.helpers.device import CUDA, DEVICE, needs_kernels
from tests.helpers.engine import LocalEngine, greedy

pytestmark = needs_kernels


@pytest.mark.parametrize("vocab", [33, 4096, 5000, 151_936])
def test_kernel(vocab: int) -> None:
    from radixlm.kernels.triton.masks import apply_token_masks

    vocab = vocab if CUDA else min(vocab, 5000)
    logits = torch.randn(4, vocab, device=DEVICE)
    bits = torch.randint(-(2**31), 2**31, (2, -(-vocab // 32)), device=DEVICE).to(torch.int32)
    where = torch.tensor([1, 3], device=DEVICE)
    expected = logits.clone()
    apply_token_masks_reference(expected, where, bits)
    apply_token_masks(logits, where, bits)
    assert torch.equal(logits, expected)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("graphs", ["full", "disabled"])
def test_constrained_rows_beside_free_ones(graphs: str, run_ahead: int) -> None:
    pytest.importorskip("llguidance")
    from tests.unit.engine.test_grammars import BIG, PATTERNS, PROMPT, room, spec, text

    card = msgspec.structs.replace(BIG, head_dim=16)  # the least that tensor cores take
    model = ARCHITECTURES.load(card.architecture)(card, torch.float32, torch.device("cuda"))
    fill_dummy(model.parameters(), 3)
    flags = {
        "device": "cuda",
        "max_running_requests": 16,
        "max_total_tokens": 4096,
        "cuda_graph_backend_decode": graphs,
    }
    engine = LocalEngine(LoadedModel(model, 0, 0.0), card, run_ahead, room(), **flags)
    free = engine.generate([PROMPT], greedy(30))[0].tokens
    asked = [
        engine.submit(PROMPT, greedy(60, ignore_eos=False, seed=n), grammar=spec(p)) for n, p in enumerate(PATTERNS)
    ]
    other = engine.submit(PROMPT, greedy(30))
    engine.finish()
    for pattern, key in zip(PATTERNS, asked, strict=True):
        assert re.fullmatch(pattern, text(engine.outputs[key])), pattern
    assert engine.outputs[other].tokens == free

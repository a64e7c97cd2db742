"""Models that pool on the GPU: the vectors are those of transformers on the CPU, within the data type's precision."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.helpers.device import needs_cuda
from tests.helpers.pooled import PooledEngine, make_model, prompts, reference

pytestmark = needs_cuda
BATCH = prompts([7, 1, 33, 12, 100, 12, 2, 64, 64, 65])
FLAGS: dict[str, Any] = {"device": "cuda", "max_running_requests": 32}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("run_ahead", [0, 1])
def test_an_encoder(dtype: str, run_ahead: int, tmp_path: Path) -> None:
    model = make_model("BertModel", tmp_path)
    engine = PooledEngine(tmp_path, dtype=dtype, run_ahead=run_ahead, max_prefill_tokens=150, **FLAGS)
    want = reference(BATCH, lambda ids: F.normalize(model(ids).last_hidden_state[:, 0], dim=-1))
    assert abs(engine.vectors(BATCH) - want).max() < (1e-4 if dtype == "float32" else 0.05)


def test_pairs(tmp_path: Path) -> None:
    model = make_model("BertForSequenceClassification", tmp_path, num_labels=1)

    def typed(ids: Tensor) -> Tensor:
        types = (torch.arange(ids.shape[1]) >= 9).long()[None]
        return torch.sigmoid(model(ids, token_type_ids=types).logits)

    pairs = prompts([20, 24, 11])
    engine = PooledEngine(tmp_path, dtype="float32", **FLAGS)
    assert abs(engine.vectors(pairs, second_at=9) - reference(pairs, typed)).max() < 1e-4


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_a_decoder(run_ahead: int, tmp_path: Path) -> None:
    """In chunks, and then on cached prefixes."""
    model = make_model("Qwen3ForCausalLM", tmp_path, head_dim=64)
    flags = {**FLAGS, "max_total_tokens": 4000, "chunked_prefill_size": 48, "run_ahead": run_ahead}
    engine = PooledEngine(tmp_path, embedding=True, dtype="bfloat16", **flags)
    want = reference(BATCH, lambda ids: F.normalize(model.model(ids).last_hidden_state[:, -1], dim=-1))
    for _ in range(2):
        assert abs(engine.vectors(BATCH) - want).max() < 0.05
    assert engine.cached_tokens() == 64


def test_mean_pooling_over_chunks(tmp_path: Path) -> None:
    model = make_model("Qwen3Model", tmp_path, head_dim=64)
    (tmp_path / "modules.json").write_text(
        '[{"type": "s.Transformer", "path": ""}, {"type": "s.Pooling", "path": "1_Pooling"}]'
    )
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": ["mean", "max", "weightedmean"]}')
    flags = {**FLAGS, "max_total_tokens": 4000, "chunked_prefill_size": 48}
    got = PooledEngine(tmp_path, dtype="bfloat16", run_ahead=1, **flags).vectors(BATCH)

    def three(ids: Tensor) -> Tensor:
        hidden = model(ids).last_hidden_state
        weights = torch.arange(1, ids.shape[1] + 1)[None, :, None].float()
        return torch.cat((hidden.mean(1), hidden.amax(1), (hidden * weights).sum(1) / weights.sum()), -1)

    want = reference(BATCH, three)
    assert abs(got - want).max() < 0.05 * abs(want).max()

"""One prompt asked again and again in different company: how many different answers come."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radixlm.config.card import ModelCard
from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.loader.weights import LoadedModel, load_model
from radixlm.protocol.sampling import SamplingParams
from tests.helpers.engine import LocalEngine

VOCAB = 3000
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "rope_theta": 1_000_000,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 1,
}
SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 352, "num_attention_heads": 4}
ROOMY = {"max_total_tokens": 12_000}
# Chunks of all sizes, pages of several tokens, a pool so small that requests are retracted, no cache, no graphs.
ENGINES: tuple[dict[str, Any], ...] = (
    {**ROOMY, "chunked_prefill_size": 512},
    {**ROOMY, "chunked_prefill_size": 48, "page_size": 16, "disable_cuda_graph": True},
    {"max_total_tokens": 600, "chunked_prefill_size": 128, "schedule_conservativeness": 0.0},
    {**ROOMY, "chunked_prefill_size": 100, "disable_radix_cache": True},
)


def make_model(folder: Path, device: torch.device, dtype: torch.dtype) -> tuple[LoadedModel, ModelCard]:
    """A decoder of random weights whose matrices are large enough for libraries to choose kernels by the batch."""
    (folder / "config.json").write_text(json.dumps(CONFIG if device.type == "cuda" else CONFIG | SMALL))
    source = resolve(str(folder))
    card = load_card(source)
    return load_model(source, card, dtype, device, "dummy", 1, True), card


def answers(loaded: LoadedModel, card: ModelCard, params: SamplingParams, runs: int, **flags: Any) -> list[list[int]]:
    """What a prompt got in `runs` runs on engines of all kinds: cold, warm, alone and among random others."""
    rng = np.random.default_rng(7)
    prompt = rng.integers(4, VOCAB, 333).tolist()
    engines = [
        LocalEngine(
            loaded, card, i % 2,
            **{"enable_deterministic_inference": True, "max_running_requests": 24, "random_seed": 1, **kind, **flags},
        )
        for i, kind in enumerate(ENGINES)
    ]  # fmt: skip
    got = []
    for run in range(runs):
        engine = engines[run % len(engines)]
        if run % 3 == 0:
            engine.scheduler.flush_cache(0.0)
        for _ in range(int(rng.integers(4, 12)) if run >= len(engines) else 0):
            other = prompt[: rng.integers(1, 300)] if rng.random() < 0.3 else []
            other = [*other, *rng.integers(4, VOCAB, rng.integers(1, 60)).tolist()]
            engine.submit(other, SamplingParams(max_new_tokens=int(rng.integers(60, 150)), seed=run))
        for _ in range(int(rng.integers(0, 10))):
            engine.turn()
        key = engine.submit(prompt, params)
        engine.finish()
        got.append(engine.outputs[key].tokens)
    assert engines[2].scheduler.stats(0.0).num_retracted_requests_total > 0
    return got

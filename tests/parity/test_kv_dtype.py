"""--kv-cache-dtype on the CPU: both backends give the same tokens, whatever the chunks and pages; fp32 gives HF's."""

from pathlib import Path

import pytest
import torch

from radixlm.base.errors import ConfigError
from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.loader.weights import load_model
from tests.helpers.checkpoints import VOCAB, make_checkpoint
from tests.helpers.engine import LocalEngine, greedy
from tests.parity.test_switches import CPU, one_thread, reference_of

__all__ = ["one_thread"]
NEW_TOKENS = 12
TIE = {"float32": 1e-4, "float16": 0.02, "bf16": 0.2}  # logits closer than this may change places


@pytest.mark.parametrize("kv_dtype", list(TIE))
def test_precisions_of_the_kv_pool(kv_dtype: str, tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path)
    source = resolve(str(tmp_path))
    card = load_card(source)
    loaded = load_model(source, card, torch.float32, CPU)
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in (1, 7, 16, 40, 90)]
    references = reference_of(model, prompts, NEW_TOKENS)
    outputs = []
    for backend, page, chunk in (("torch_native", 1, 16), ("native_cpu", 16, 512), ("native_cpu", 1, 16)):
        engine = LocalEngine(
            loaded, card, kv_cache_dtype=kv_dtype, attention_backend=backend, page_size=page,
            chunked_prefill_size=chunk, max_total_tokens=2048,
        )  # fmt: skip
        for _ in ("cold", "warm"):
            outputs.append([output.tokens for output in engine.generate(prompts, greedy(NEW_TOKENS))])
    assert all(output == outputs[0] for output in outputs[1:])
    for tokens, reference in zip(outputs[0], references, strict=True):
        pairs = enumerate(zip(tokens, reference.output_ids, strict=True))
        first = next((place for place, (ours, theirs) in pairs if ours != theirs), None)
        assert first is None or reference.margins[first] < TIE[kv_dtype], (first, reference.margins)


def test_what_does_not_exist_is_refused(tmp_path: Path) -> None:
    make_checkpoint("qwen3", tmp_path)
    with pytest.raises(ConfigError, match="--kv-cache-dtype"):
        LocalEngine(None, load_card(resolve(str(tmp_path))), kv_cache_dtype="fp8_e4m3")  # type: ignore[arg-type]

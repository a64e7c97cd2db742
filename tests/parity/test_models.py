"""Each architecture, tiny and random, against Hugging Face's own: logits and greedy tokens."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.loader.weights import load_model
from radixlm.models.base import Model
from tests.helpers.checkpoints import CASES, VOCAB, in_bfloat16, make_checkpoint
from tests.helpers.forward import Harness, Row

PROMPT = torch.randint(0, VOCAB, (41,), generator=torch.Generator().manual_seed(7)).tolist()
OTHERS = [PROMPT[5:30], PROMPT[::-1], PROMPT[2:5]]
FP32_BOUND = 1e-4
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Pair:
    """The same weights in both implementations."""

    reference: transformers.PreTrainedModel
    folder: Path
    model: Model

    def logits(self, tokens: list[int]) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = self.reference(torch.tensor([tokens])).logits[0].float()
        return logits

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        tokens = list(tokens)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[-count:]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Model:
    source = resolve(str(folder))
    return load_model(source, load_card(source), dtype, CPU).model


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp(request.param)
    reference = make_checkpoint(request.param, folder)
    return Pair(reference, folder, load(folder))


def test_card_tells_what_the_checkpoint_holds(pair: Pair) -> None:
    card = load_card(resolve(str(pair.folder)))
    assert card.num_parameters == pair.reference.num_parameters()
    assert card.eos_token_ids == (3,)
    assert card.dtype == "float32"


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk_tokens", [None, 5])
def test_prompt_logits(pair: Pair, page_size: int, chunk_tokens: int | None) -> None:
    harness = Harness(pair.model, page_size=page_size)
    ours = harness.prefill(1, PROMPT, chunk_tokens)
    assert (ours - pair.logits(PROMPT)).abs().max() < FP32_BOUND


def test_prompt_logits_without_native_kernels(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("elementwise", "linear"):
        monkeypatch.setattr(f"radixlm.kernels.native.{module}.library", lambda: None)
    ours = Harness(load(pair.folder)).prefill(0, PROMPT, 16)
    assert (ours - pair.logits(PROMPT)).abs().max() < FP32_BOUND


@pytest.mark.parametrize("page_size", [1, 16])
def test_mixed_batch(pair: Pair, page_size: int) -> None:
    """Two decodes of different context, a chunk behind a cached prefix and a first chunk, in one step."""
    harness = Harness(pair.model, page_size=page_size)
    a, b, c, d = PROMPT, *OTHERS
    harness.step([Row(0, a[:-1]), Row(2, c[:7])])
    harness.step([Row(3, d[:-1])])
    got = harness.step([Row(0, a[-1:]), Row(3, d[-1:]), Row(2, c[7:]), Row(1, b)])
    want = [pair.logits(a)[-1:], pair.logits(d)[-1:], pair.logits(c)[7:], pair.logits(b)]
    for ours, theirs in zip(got, want, strict=True):
        assert (ours - theirs).abs().max() < FP32_BOUND


def test_greedy_tokens(pair: Pair) -> None:
    want = pair.greedy(PROMPT, 32)
    assert len(set(want)) > 4
    assert Harness(pair.model).greedy(0, PROMPT, 32) == want
    assert Harness(pair.model, page_size=1).greedy(0, PROMPT, 32, chunk_tokens=5) == want


def test_greedy_tokens_of_a_batch(pair: Pair) -> None:
    prompts = [PROMPT, *OTHERS]
    harness = Harness(pair.model)
    first = harness.step([Row(slot, prompt) for slot, prompt in enumerate(prompts)])
    got = [[int(logits[-1].argmax())] for logits in first]
    for _ in range(15):
        rows = [Row(slot, tokens[-1:]) for slot, tokens in enumerate(got)]
        for tokens, logits in zip(got, harness.step(rows), strict=True):
            tokens.append(int(logits[-1].argmax()))
    assert got == [pair.greedy(prompt, 16) for prompt in prompts]


def test_bfloat16_errs_no_more_than_the_reference(pair: Pair) -> None:
    """Against fp32 logits, our bf16 errs at most 1.15 times as much as Hugging Face's bf16 on average, 1.5 at worst."""
    want = pair.logits(PROMPT)
    ours = Harness(load(pair.folder, torch.bfloat16), torch.bfloat16).prefill(0, PROMPT, 16) - want
    low = in_bfloat16(pair.reference, pair.folder)
    with torch.inference_mode():
        theirs = low(torch.tensor([PROMPT])).logits[0].float() - want
    assert ours.abs().mean() < 1.15 * theirs.abs().mean()
    assert ours.abs().max() < 1.5 * theirs.abs().max()

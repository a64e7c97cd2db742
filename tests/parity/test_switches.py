"""Greedy fp32 tokens of the whole engine equal Hugging Face's, whatever is switched on: tiny models and the demo."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from radixlm.config.card import ModelCard
from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.loader.weights import LoadedModel, load_model
from tests.helpers.checkpoints import CASES, VOCAB, make_checkpoint
from tests.helpers.engine import LocalEngine, greedy
from tests.helpers.parity import Reference, Verdict, load

CPU = torch.device("cpu")
DEMO_REFERENCE = Path(__file__).parent / "data" / "demo.json"
# Every pair of values of two switches occurs in some row: chunk, page, run-ahead, radix cache off, requests at once.
PAIRWISE = [
    (16, 1, 0, False, 1),
    (16, 16, 1, True, 16),
    (512, 1, 1, False, 16),
    (512, 16, 0, True, 1),
    (16, 1, 1, True, 1),
    (512, 16, 0, False, 16),
    (16, 16, 0, False, 1),
    (-1, 1, 0, True, 16),
    (-1, 16, 1, False, 1),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def reference_of(model: torch.nn.Module, prompts: list[list[int]], new_tokens: int) -> list[Reference]:
    rows = []
    for number, prompt in enumerate(prompts):
        ids, output, margins = list(prompt), [], []
        for _ in range(new_tokens):
            with torch.inference_mode():
                top = model(torch.tensor([ids])).logits[0, -1].topk(2)
            output.append(int(top.indices[0]))
            margins.append(float(top.values[0] - top.values[1]))
            ids.append(output[-1])
        rows.append(Reference(f"prompt {number}", list(prompt), output, margins))
    return rows


def run_and_judge(engine: LocalEngine, references: list[Reference], at_once: int, what: str) -> Verdict:
    """Run every prompt cold and then warm, and judge both."""
    verdict = Verdict()
    for temperature in ("cold", "warm"):
        length = len(references[0].output_ids)
        outputs = engine.generate([r.prompt_ids for r in references], greedy(length), at_once)
        for reference, output in zip(references, outputs, strict=True):
            assert len(output.tokens) == length
            verdict.check(reference, output.tokens, f"{what} {temperature}")
    return verdict


@pytest.mark.parametrize("case", list(CASES))
def test_tiny_models_under_every_pair_of_switches(case: str, tmp_path: Path) -> None:
    model = make_checkpoint(case, tmp_path)
    source = resolve(str(tmp_path))
    card = load_card(source)
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(0, VOCAB, (40,), generator=generator).tolist()
    prompts = [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in (1, 5, 16, 17, 33, 90)]
    prompts += [shared + torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in (1, 3, 9, 24)]
    references = reference_of(model, prompts, 16)
    loaded = load_model(source, card, torch.float32, CPU)
    total = Verdict()
    for chunk, page, depth, off, at_once in PAIRWISE:
        engine = LocalEngine(
            loaded, card, depth, chunked_prefill_size=chunk, page_size=page, disable_radix_cache=off,
            max_total_tokens=4096,
        )  # fmt: skip
        what = f"chunk={chunk} page={page} depth={depth} radix={not off} at_once={at_once}"
        verdict = run_and_judge(engine, references, at_once, what)
        total.wrong += verdict.wrong
        total.ties += verdict.ties
        total.compared_tokens += verdict.compared_tokens
    assert not total.wrong, "\n".join(total.wrong)
    assert total.compared_tokens > 0.95 * len(PAIRWISE) * 2 * len(prompts) * 16


@pytest.fixture(scope="module")
def demo() -> tuple[LoadedModel, ModelCard]:
    source = resolve("demo")
    card = load_card(source)
    return load_model(source, card, torch.float32, CPU), card


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("chunk", "page", "depth", "at_once"), [(512, 16, 0, 1), (16, 1, 1, 16), (512, 16, 1, 16), (512, 1, 0, 16)]
)
def test_demo_model(demo: tuple[LoadedModel, ModelCard], chunk: int, page: int, depth: int, at_once: int) -> None:
    loaded, card = demo
    torch.set_num_threads(2)
    references = load(DEMO_REFERENCE)
    engine = LocalEngine(
        loaded, card, depth, chunked_prefill_size=chunk, page_size=page, max_total_tokens=32_768, context_length=2048
    )
    verdict = Verdict()
    prompts = [r.prompt_ids for r in references]
    for reference, output in zip(references, engine.generate(prompts, greedy(64), at_once), strict=True):
        verdict.check(reference, output.tokens)
    if at_once > 1:
        for reference, output in zip(references, engine.generate(prompts, greedy(64), at_once), strict=True):
            verdict.check(reference, output.tokens, "warm")
            assert output.finished is not None
            assert output.finished.cached_tokens >= (len(reference.prompt_ids) - 1) // page * page
    assert not verdict.wrong, "\n".join(verdict.wrong)
    print(f"{verdict.compared_tokens} tokens equal, {len(verdict.ties)} ties: {verdict.ties}")


def test_the_order_and_pace_of_work_change_no_token(tmp_path: Path) -> None:
    """Pacing, eviction and policies with requests that share prefixes, in a pool too small for all of them."""
    make_checkpoint("qwen3", tmp_path)
    source = resolve(str(tmp_path))
    card = load_card(source)
    loaded = load_model(source, card, torch.float32, CPU)
    generator = torch.Generator().manual_seed(3)
    shared = torch.randint(0, VOCAB, (40,), generator=generator).tolist()
    prompts = [shared[: 8 * (i % 6)] + torch.randint(0, VOCAB, (9,), generator=generator).tolist() for i in range(18)]
    expected = [o.tokens for o in LocalEngine(loaded, card, max_total_tokens=8192).generate(prompts, greedy(10))]
    settings: list[dict[str, object]] = [
        {"prefill_decode_interval": 3, "radix_eviction_policy": "tlru", "schedule_policy": "routing-key"},
        {"min_free_slots_delay": 3, "max_running_requests": 5, "radix_eviction_policy": "slru",
         "radix_eviction_policy_config": {"protected_threshold": 3}},
        {"enable_prefill_delayer": True, "prefill_delayer_queue_min_ratio": 2.0, "schedule_policy": "lpm"},
    ]  # fmt: skip
    for depth, flags in enumerate(settings):
        engine = LocalEngine(loaded, card, depth % 2, page_size=4, max_total_tokens=320, **flags)
        assert [o.tokens for o in engine.generate(prompts, greedy(10))] == expected, flags
        assert engine.scheduler.stats(0.0).evicted_tokens_total > 0


def test_retraction_changes_no_token(tmp_path: Path) -> None:
    make_checkpoint("qwen3", tmp_path)
    source = resolve(str(tmp_path))
    card = load_card(source)
    loaded = load_model(source, card, torch.float32, CPU)
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(0, VOCAB, (12,), generator=generator).tolist() for _ in range(24)]
    plain = greedy(60, ignore_eos=False)  # what ignores EOS is reserved in full, and never retracted
    penalties = {"frequency_penalty": 0.3, "repetition_penalty": 1.2}
    sampled = greedy(60, ignore_eos=False, temperature=0.8, top_p=0.9, seed=5, **penalties)
    for params, page, depth in itertools.product((plain, sampled), (1, 16), (0, 1)):
        roomy = LocalEngine(loaded, card, depth, page_size=page, max_total_tokens=8192)
        tight = LocalEngine(loaded, card, depth, page_size=page, max_total_tokens=512, schedule_conservativeness=0.1)
        expected = roomy.generate(prompts, params)
        got = tight.generate(prompts, params)
        assert [o.tokens for o in got] == [o.tokens for o in expected]
        assert sum(o.finished.retractions for o in got if o.finished) > 0
        assert tight.scheduler.flush_cache(0.0).success

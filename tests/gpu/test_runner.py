"""The whole engine on the GPU: graphs, backends and run-ahead change no token, nothing leaks, and nothing waits."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from radixlm.attention.base import AttentionBackend, ForwardContext
from radixlm.cache.pools.mha import MHAPool
from radixlm.config.card import ModelCard
from radixlm.engine.trial import null_step
from radixlm.kernels.triton import shared as shared_module
from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.loader.weights import LoadedModel, load_model
from radixlm.models.decoder import Decoder
from radixlm.protocol.extras import OUTPUTS_ONLY, LogprobOptions, joined
from radixlm.protocol.sampling import SamplingParams
from radixlm.runner.staging import Landing, Staging
from tests.helpers.checkpoints import CASES, VOCAB, in_bfloat16, make_checkpoint
from tests.helpers.device import needs_cuda
from tests.helpers.engine import LocalEngine, greedy
from tests.helpers.forward import attention_facts, make_batch, shuffled_page_table
from tests.helpers.parity import Reference, Verdict
from tests.parity.test_switches import reference_of

pytestmark = needs_cuda
CUDA = torch.device("cuda")
NEW_TOKENS = 24
LENGTHS = (1, 3, 17, 40, 64, 65, 100, 31, 8, 2, 90, 55)
FLAGS: dict[str, Any] = {
    "device": "cuda",
    "max_running_requests": 48,
    "max_total_tokens": 8000,
    "chunked_prefill_size": 64,
    "random_seed": 1,
}
# page size, run-ahead, graphs, backend, requests at once
SWITCHES = [
    (1, 1, True, "triton", 12),
    (1, 0, False, "triton", 12),
    (16, 0, True, "triton", 5),
    (16, 1, False, "triton", 1),
    (1, 1, False, "torch_native", 12),
    (16, 0, False, "torch_native", 3),
]
SAMPLED = [
    SamplingParams(max_new_tokens=20, ignore_eos=True, seed=1),
    SamplingParams(max_new_tokens=20, ignore_eos=True, seed=2, temperature=0.6, top_p=0.8),
    SamplingParams(max_new_tokens=20, ignore_eos=True, seed=3, top_k=5, min_p=0.02),
    SamplingParams(max_new_tokens=20, ignore_eos=True, temperature=0.0),
    SamplingParams(max_new_tokens=20, ignore_eos=True, temperature=0.0, frequency_penalty=0.7, repetition_penalty=1.3),
    SamplingParams(max_new_tokens=20, seed=6, min_new_tokens=10, logit_bias={5: 4.0, 3: 9.0}),
]


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(4, VOCAB, length).tolist() for length in LENGTHS]


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A tiny model on the GPU in fp32, and what transformers makes of the prompts on the CPU."""

    folder: Path
    reference: torch.nn.Module
    references: list[Reference]
    card: ModelCard
    loaded: LoadedModel

    def engine(self, run_ahead: int = 1, **flags: Any) -> LocalEngine:
        return LocalEngine(self.loaded, self.card, run_ahead, **{**FLAGS, **flags})


def load(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[ModelCard, LoadedModel]:
    source = resolve(str(folder))
    card = load_card(source)
    return card, load_model(source, card, dtype, CUDA)


@pytest.fixture(scope="module", params=CASES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny("qwen3", tmp_path_factory.mktemp("one"))


@pytest.fixture(autouse=True)
def given_back() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


def make_tiny(case: str, folder: Path) -> Tiny:
    reference = make_checkpoint(case, folder)
    return Tiny(folder, reference, reference_of(reference, prompts(), NEW_TOKENS), *load(folder))


def test_switches_change_no_token(tiny: Tiny) -> None:
    verdict = Verdict()
    for page, depth, graphs, backend, at_once in SWITCHES:
        engine = tiny.engine(
            depth, page_size=page, attention_backend=backend, disable_cuda_graph=not graphs, context_length=256
        )
        assert ("sizes up to" in "\n".join(engine.ready.report)) == graphs
        what = f"page {page}, depth {depth}, graphs {graphs}, {backend}, {at_once} at once"
        for warmth in ("cold", "warm"):
            outputs = engine.generate([r.prompt_ids for r in tiny.references], greedy(NEW_TOKENS), at_once)
            for reference, output in zip(tiny.references, outputs, strict=True):
                verdict.check(reference, output.tokens, f"{what}, {warmth}")
    assert not verdict.wrong, verdict.wrong[:5]
    assert len(verdict.ties) <= 0.05 * len(SWITCHES) * 2 * len(LENGTHS), verdict.ties
    assert verdict.compared_tokens > 0.95 * len(SWITCHES) * 2 * len(LENGTHS) * NEW_TOKENS


def shared_calls(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by one with each layer's attention to shared keys."""
    shared, calls = shared_module.attend_shared, list[None]()
    monkeypatch.setattr(shared_module, "attend_shared", lambda *a, **k: (calls.append(None), shared(*a, **k)))
    return calls


@pytest.mark.parametrize("page_size", [1, 16])
def test_keys_that_requests_share_are_read_once(qwen3: Tiny, page_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of such rows are not replayed, though graphs were captured; their tokens are the reference's."""
    monkeypatch.setattr("radixlm.attention.triton_paged.SHARED_BYTES", 1)
    monkeypatch.setattr("radixlm.attention.triton_paged.EAGER_BYTES", 1)
    monkeypatch.setattr("radixlm.attention.triton_paged.GROUP_BYTES", 1)
    calls = shared_calls(monkeypatch)
    rng = np.random.default_rng(5)
    trunks = [rng.integers(4, VOCAB, 80).tolist() for _ in range(2)]
    together = [trunks[i % 2] + rng.integers(4, VOCAB, 2 + 3 * i).tolist() for i in range(9)] + prompts()[:3]
    references = reference_of(qwen3.reference, together, NEW_TOKENS)
    engine, verdict = qwen3.engine(page_size=page_size, context_length=256), Verdict()
    for warmth in ("cold", "warm"):
        outputs = engine.generate(together, greedy(NEW_TOKENS), 12)
        for reference, output in zip(references, outputs, strict=True):
            verdict.check(reference, output.tokens, warmth)
    assert not verdict.wrong, verdict.wrong[:5]
    assert len(calls) > NEW_TOKENS * qwen3.card.num_layers


@pytest.mark.parametrize("rows", [24, 48])
def test_a_start_tries_the_step_that_reads_shared_keys(qwen3: Tiny, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixlm.attention.triton_paged.SHARED_BYTES", 1 << 19)
    monkeypatch.setattr("radixlm.attention.triton_paged.EAGER_BYTES", 1 << 20)
    monkeypatch.setattr("radixlm.attention.triton_paged.GROUP_BYTES", 1)
    calls = shared_calls(monkeypatch)
    qwen3.engine(context_length=512, max_running_requests=rows)
    assert len(calls) == qwen3.card.num_layers


def test_sampled_requests_do_not_depend_on_their_neighbours(qwen3: Tiny) -> None:
    """Every kind of sampling in one batch, replayed and eager, ahead and not, alone and together."""
    params = [SAMPLED[i % len(SAMPLED)] for i in range(len(LENGTHS))]
    runs = []
    for depth, graphs, at_once in ((1, True, 12), (0, False, 12), (0, True, 1), (1, False, 4)):
        engine = qwen3.engine(depth, disable_cuda_graph=not graphs)
        runs.append([output.tokens for output in engine.generate(prompts(), params, at_once)])
    different = [i for i in range(len(LENGTHS)) if len({tuple(run[i]) for run in runs}) > 1]
    assert len(different) <= 1, [[run[i] for run in runs] for i in different]  # fp32 sums may tip one draw
    assert len({tuple(tokens) for tokens in runs[0]}) == len(LENGTHS)


def test_a_retracted_request_goes_on_as_before(qwen3: Tiny) -> None:
    params = SamplingParams(max_new_tokens=60, seed=2, temperature=0.6, top_p=0.8, logit_bias={3: -100.0})
    roomy = qwen3.engine(page_size=1).generate(prompts(), params)
    tight = qwen3.engine(page_size=1, max_total_tokens=700, schedule_conservativeness=0.0)
    outputs = tight.generate(prompts(), params)
    assert tight.scheduler.stats(0.0).num_retracted_requests_total > 0
    assert sum(a.tokens != b.tokens for a, b in zip(roomy, outputs, strict=True)) <= 1


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("run_ahead", [0, 1])
def test_readings_are_the_references(qwen3: Tiny, graphs: bool, run_ahead: int) -> None:
    """Log probabilities and hidden vectors, of rows among others that want none, cold and cached; embeddings too."""
    engine = qwen3.engine(run_ahead, disable_cuda_graph=not graphs)
    options = [LogprobOptions(0, 3, (7, 9)), None, LogprobOptions(OUTPUTS_ONLY, 1)]
    table = qwen3.reference.model.embed_tokens.weight.detach().numpy()
    for _ in range(2):
        keys = []
        for index, prompt in enumerate(prompts()):
            wanted, hidden = options[index % 3], 0 if index % 4 == 0 else None
            own = {"embeds": table[prompt]} if index % 5 == 4 and wanted is None else {}
            keys.append(engine.submit(prompt, greedy(6), logprobs=wanted, hidden_start=hidden, **own))
        engine.finish()
        for index, (key, prompt) in enumerate(zip(keys, prompts(), strict=True)):
            output = engine.outputs[key]
            ids = torch.tensor([[*prompt, *output.tokens]])
            with torch.inference_mode():
                states = qwen3.reference.model(ids).last_hidden_state[0]
                want = qwen3.reference.lm_head(states).log_softmax(-1)
            assert output.tokens == want[len(prompt) - 1 : -1].argmax(-1).tolist()
            if not output.extras:
                assert options[index % 3] is None and index % 4
                continue
            got = joined(output.extras)
            if index % 4 == 0:
                near(got.hidden, states[:-1])
            if options[index % 3] is not None:
                steps = torch.arange(len(prompt) - 1, len(prompt) + 5)
                near(got.output.values, want[steps, torch.tensor(output.tokens)])
                near(got.output.top_values, want[steps].topk(options[index % 3].top).values)
            if got.prompt is not None:
                near(got.prompt.values, want[torch.arange(len(prompt) - 1), torch.tensor(prompt[1:])])
                near(got.prompt.chosen_values, want[: len(prompt) - 1, [7, 9]])


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("graphs", [True, False])
def test_logprobs_of_samples_alone(qwen3: Tiny, graphs: bool, run_ahead: int) -> None:
    """They come with the samples, from the graph too; with every kind of sampling, and beside rows that want none."""
    for some in (SAMPLED[:4], SAMPLED):
        engine = qwen3.engine(run_ahead, disable_cuda_graph=not graphs)
        keys = []
        for index, prompt in enumerate(prompts()):
            own = {"logprobs": LogprobOptions(OUTPUTS_ONLY)} if index % 4 != 3 else {}
            keys.append(engine.submit(prompt, some[index % len(some)], **own))
        engine.finish()
        for index, (key, prompt) in enumerate(zip(keys, prompts(), strict=True)):
            output = engine.outputs[key]
            if index % 4 == 3:
                assert output.extras == []
                continue
            ids = torch.tensor([[*prompt, *output.tokens]])
            with torch.inference_mode():
                want = qwen3.reference(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            got = joined(output.extras).output
            assert got is not None and got.tokens.tolist() == output.tokens
            near(got.values, want.gather(1, torch.tensor(output.tokens)[:, None])[:, 0])


def near(got: Any, want: torch.Tensor) -> None:
    assert got.shape == tuple(want.shape)
    assert np.abs(got - want.numpy()).max() < 1e-4


@pytest.mark.parametrize("graphs", [True, False])
def test_random_requests_with_a_third_aborted_leave_nothing_behind(qwen3: Tiny, graphs: bool) -> None:
    rng = np.random.default_rng(8)
    engine = qwen3.engine(max_total_tokens=2000, disable_cuda_graph=not graphs)
    shared = rng.integers(4, VOCAB, 60).tolist()
    doomed: list[int] = []
    for number in range(500):
        prompt = [*shared[: rng.integers(0, 60)], *rng.integers(4, VOCAB, rng.integers(1, 80)).tolist()]
        params = msgspec.structs.replace(SAMPLED[number % len(SAMPLED)], max_new_tokens=int(rng.integers(1, 40)))
        key = engine.submit(prompt, params, stream=bool(number % 2))
        if number % 3 == 0:
            doomed.append(key)
        if rng.random() < 0.5:
            engine.turn()
        if doomed and rng.random() < 0.4:
            engine.abort(doomed.pop(int(rng.integers(len(doomed)))))
    engine.finish()
    assert engine.scheduler.flush_cache(0.0).success
    stats = engine.scheduler.stats(0.0)
    assert stats.kv_available_tokens == stats.max_total_num_tokens and stats.conservation_errors_total == 0
    aborted = [o for o in engine.outputs.values() if o.finished is not None and o.finished.reason.type == "abort"]
    assert 50 < len(aborted) < 170


def test_launching_waits_for_nothing(qwen3: Tiny) -> None:
    """torch raises where the host would wait for the device: mixed steps, replays, changed logits, many starts."""
    engine = qwen3.engine(0, attention_backend="triton")
    runner = engine.runner
    engine.generate(prompts(), SAMPLED * 2)  # everything has been compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        steps = [
            runner.launch(null_step([5] * 20, 0, SAMPLED[1])),
            runner.launch(null_step([1] * 17 + [9] * 3, 17, SAMPLED[0])),
            runner.launch(null_step([1] * 30, 30)),
            runner.launch(null_step([1] * 30, 30, SAMPLED[4])),
            runner.launch(null_step([1] * 30, 30, SAMPLED[5])),
        ]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [runner.retire(step).error for step in steps] == [None] * 5


def test_sent_arrays_arrive_whole_however_many_are_under_way() -> None:
    staging, landing = Staging(CUDA), Landing(CUDA, 1000)
    slow = torch.randn(8192, 8192, device=CUDA)
    sent, arrivals = [], []
    for number in range(12):
        slow = slow @ slow.clamp(-1e-3, 1e-3)  # so that the device is far behind the host
        arrays = [np.full((3, 7 + number), number, np.int32), np.arange(40_000 * (number % 3) + 1, dtype=np.int64)]
        sent.append((arrays, staging.send(arrays)))
        arrivals.append(landing.start(torch.full((number + 1,), number, device=CUDA)))
    assert arrivals[-1].event is not None and not arrivals[-1].event.query(), "sending waited for the device"
    for arrays, tensors in sent:
        assert all((tensor.cpu().numpy() == array).all() for array, tensor in zip(arrays, tensors, strict=True))
    assert [landing.wait(arrival).tolist() for arrival in arrivals] == [[n] * (n + 1) for n in range(12)]


def test_out_of_device_memory_ends_the_step_only(qwen3: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = qwen3.engine(disable_cuda_graph=True)
    want = engine.generate(prompts()[:4], greedy(8))
    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "raw_logits", lambda *_: torch.empty(1 << 45, device="cuda"))
        failed = engine.generate(prompts()[:4], greedy(8))
    for output in failed:
        assert output.finished is not None and output.finished.reason.status_code == 500
        assert "OutOfMemoryError" in (output.finished.reason.message or "")
    again = engine.generate(prompts()[:4], greedy(8))
    assert [output.tokens for output in again] == [output.tokens for output in want]
    assert engine.scheduler.flush_cache(0.0).success


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("backend", ["triton", "flashinfer"])
def test_bfloat16_tokens_are_all_but_the_best(backend: str, page_size: int, tmp_path: Path) -> None:
    """By fp32 on the CPU, no greedy token of replayed steps in bf16 is more than rounding below the best one."""
    if backend == "flashinfer":
        pytest.importorskip("flashinfer")
    reference = make_checkpoint("qwen3", tmp_path, head_dim=128)
    card, loaded = load(tmp_path, torch.bfloat16)
    engine = LocalEngine(
        loaded, card, 1, **FLAGS, dtype="bfloat16", attention_backend=backend, page_size=page_size, context_length=256
    )
    assert "sizes up to" in "\n".join(engine.ready.report)
    for at_once in (12, 1):
        outputs = engine.generate(prompts(), greedy(NEW_TOKENS), at_once)
        for prompt, output in zip(prompts(), outputs, strict=True):
            with torch.inference_mode():
                logits = reference(torch.tensor([prompt + output.tokens])).logits[0, len(prompt) - 1 : -1].float()
            below = logits.max(-1).values - logits.gather(-1, torch.tensor(output.tokens)[:, None])[:, 0]
            assert below.max() < 0.3 * logits.std(), (len(prompt), below.tolist())


def test_bfloat16_errs_no_more_than_the_reference(tiny: Tiny) -> None:
    """Against fp32 logits on the CPU, bf16 on the GPU errs little more than Hugging Face's bf16 on the GPU."""
    prompt = torch.tensor([prompts()[6]])
    low = in_bfloat16(tiny.reference, tiny.folder).to("cuda")  # type: ignore[arg-type]
    with torch.inference_mode():
        want = tiny.reference(prompt).logits[0].float()
        theirs = low(prompt.cuda()).logits[0].float().cpu() - want
        ours = logits_of(tiny.folder, prompt[0].tolist()) - want
    assert ours.abs().mean() < 1.3 * theirs.abs().mean()
    assert ours.abs().max() < 2.0 * theirs.abs().max()


def logits_of(folder: Path, tokens: list[int]) -> torch.Tensor:
    """All logits of a prompt by our bf16 model on the GPU, in chunks of 23 tokens, pages of 16."""
    card, loaded = load(folder, torch.bfloat16)
    table = shuffled_page_table(1, 16).cuda()
    pool = MHAPool(16, 16, card.num_layers, card.num_kv_heads, card.head_dim, torch.bfloat16, CUDA)
    backend = _backend(card, pool)
    parts = []
    for first in range(0, len(tokens), 23):
        part = tokens[first : first + 23]
        batch = make_batch([(0, first, len(part))], table, 16, decode_rows=0)
        context = ForwardContext(batch, backend, backend.prepare(batch))
        parts.append(loaded.model.logits(loaded.model.forward(torch.tensor(part, device=CUDA), context)).float())
    return torch.cat(parts).cpu()


def _backend(card: ModelCard, pool: MHAPool) -> AttentionBackend:
    from radixlm.attention.triton_paged import TritonPaged

    facts = dataclasses.replace(attention_facts(card, torch.bfloat16, 16), device="cuda")
    return TritonPaged(facts, pool)

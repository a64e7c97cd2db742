"""The runner on a tiny model: whatever shares a step or a slot, every request gets what it would get alone."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from radixlm.models.decoder import Decoder
from radixlm.protocol.plan import NOT_FINITE, SlotInit
from radixlm.protocol.sampling import SamplingParams
from radixlm.runner.rows import Rows
from tests.helpers.tiny import CARD
from tests.unit.runner.bench import GREEDY, PAGES_PER_SLOT, Bench, alone, by_slot, tiny_model

PROMPTS = [[1, 5, 7, 2, 9, 11], [3, 3, 8], [20, 4, 6, 10, 12, 13, 14, 2, 1], [17]]
MIXED = [
    GREEDY,
    SamplingParams(seed=7),
    SamplingParams(seed=-3, temperature=0.7, top_p=0.8),
    SamplingParams(seed=2**62, temperature=1.3, top_k=4, min_p=0.05),
]
STOPS = tuple(range(1, CARD.vocab_size, 2))
CHANGED = {
    "repetition": SamplingParams(temperature=0.0, repetition_penalty=1.7),
    "frequency": SamplingParams(temperature=0.0, frequency_penalty=1.1),
    "presence": SamplingParams(temperature=0.0, presence_penalty=-1.5),
    "all-sampled": SamplingParams(seed=9, repetition_penalty=1.2, frequency_penalty=0.4, presence_penalty=0.3),
    "bias": SamplingParams(temperature=0.0, logit_bias={4: 3.0, 5: -100.0, 6: 2.5}),
    "ban": SamplingParams(temperature=0.0, min_new_tokens=3),
    "everything": SamplingParams(seed=4, top_k=9, frequency_penalty=0.5, logit_bias={1: 1.0, 2: 2.0}, min_new_tokens=4),
}


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model()


def run(bench: Bench, prompts: dict[int, Sequence[int]], count: int) -> dict[int, list[int]]:
    """Prefill the prompts in one step, then decode; the tokens by slot."""
    got = {slot: [token] for slot, token in bench.step(list(prompts.items())).items()}
    while len(got[next(iter(prompts))]) < count:
        for slot, token in bench.step([(slot, None) for slot in prompts]).items():
            got[slot].append(token)
    return got


def test_each_row_samples_its_own_way(model: Decoder) -> None:
    bench = Bench(model)
    for slot, params in enumerate(MIXED):
        bench.start(slot, params)
    got = run(bench, dict(enumerate(PROMPTS)), 12)
    assert got == {slot: alone(model, PROMPTS[slot], params, 12) for slot, params in enumerate(MIXED)}
    assert len({tuple(tokens) for tokens in got.values()}) == 4


@pytest.mark.parametrize("name", CHANGED)
def test_changed_logits_among_plain_rows(model: Decoder, name: str) -> None:
    params = CHANGED[name]
    bench = Bench(model)
    bench.start(0, GREEDY)
    bench.start(3, params, PROMPTS[2], stop_ids=STOPS)
    got = run(bench, {0: PROMPTS[1], 3: PROMPTS[2]}, 10)
    assert got[0] == alone(model, PROMPTS[1], GREEDY, 10)
    assert got[3] == alone(model, PROMPTS[2], params, 10, stop_ids=STOPS)
    assert got[3] != alone(model, PROMPTS[2], SamplingParams(temperature=params.temperature, seed=params.seed), 10)


def test_two_penalized_rows_keep_their_counts_apart(model: Decoder) -> None:
    bench = Bench(model)
    params = [CHANGED["repetition"], CHANGED["frequency"], CHANGED["presence"], CHANGED["all-sampled"]]
    for slot, one in enumerate(params):
        bench.start(slot, one, PROMPTS[slot])
    got = run(bench, dict(enumerate(PROMPTS)), 8)
    assert got == {slot: alone(model, PROMPTS[slot], one, 8) for slot, one in enumerate(params)}


@pytest.mark.parametrize("name", CHANGED)
def test_resuming_with_outputs_goes_on_as_if_nothing_had_happened(model: Decoder, name: str) -> None:
    params, prompt = CHANGED[name], PROMPTS[0]
    whole = alone(model, prompt, params, 9, stop_ids=STOPS)
    bench = Bench(model)
    bench.start(2, params, prompt, outputs=whole[:4], stop_ids=STOPS)
    assert run(bench, {2: [*prompt, *whole[:4]]}, 5)[2] == whole[4:]


def test_a_slot_forgets_its_last_request(model: Decoder) -> None:
    bench = Bench(model)
    for name in CHANGED:
        bench.start(1, CHANGED[name], PROMPTS[0], stop_ids=STOPS)
        run(bench, {1: PROMPTS[0]}, 3)
        bench.start(1, GREEDY)
        assert run(bench, {1: PROMPTS[2]}, 6)[1] == alone(model, PROMPTS[2], GREEDY, 6), name
    assert not bench.rows.penalties and not bench.rows.bias and not bench.rows.stop_ids


def test_of_two_requests_that_start_on_one_slot_the_last_counts(model: Decoder) -> None:
    bench = Bench(model)
    bench.start(1, CHANGED["everything"], PROMPTS[0], stop_ids=STOPS)
    bench.start(1, MIXED[1])
    assert run(bench, {1: PROMPTS[0]}, 5)[1] == alone(model, PROMPTS[0], MIXED[1], 5)


def test_mixed_steps(model: Decoder) -> None:
    """Decodes, a first chunk that is not sampled, a last chunk and a whole prompt in the same steps."""
    bench = Bench(model)
    bench.start(0, MIXED[2])
    bench.start(1, GREEDY)
    got: dict[int, list[int]] = {slot: [] for slot in range(4)}

    def take(tokens: dict[int, int]) -> None:
        for slot, token in tokens.items():
            got[slot].append(token)

    take(bench.step([(0, PROMPTS[0]), (1, PROMPTS[1])]))
    bench.start(2, MIXED[3])
    plan = bench.plan([(0, None), (1, None), (2, PROMPTS[2][:4])])
    plan.flags[2] &= ~1  # the chunk is not the last
    bench.produced[2] = 0
    take(by_slot(plan, bench.runner.retire(bench.runner.launch(plan))))
    bench.start(3, MIXED[1])
    take(bench.step([(0, None), (2, PROMPTS[2][4:]), (3, PROMPTS[3])]))
    for _ in range(4):
        take(bench.step([(3, None), (0, None), (2, None)]))
    want = [MIXED[2], GREEDY, MIXED[3], MIXED[1]]
    for slot, params in enumerate(want):
        assert got[slot] == alone(model, PROMPTS[slot], params, len(got[slot]))
    assert [len(tokens) for tokens in got.values()] == [7, 2, 5, 5]


def test_a_step_without_samples(model: Decoder) -> None:
    bench = Bench(model)
    bench.start(0, GREEDY)
    plan = bench.plan([(0, PROMPTS[0][:3])], sample=False)
    result = bench.runner.retire(bench.runner.launch(plan))
    assert result.tokens.tolist() == [-1] and result.error is None
    bench.produced[0] = 0
    assert bench.step([(0, PROMPTS[0][3:])])[0] == alone(model, PROMPTS[0], GREEDY, 1)[0]


def test_two_steps_in_flight(model: Decoder) -> None:
    bench = Bench(model)
    bench.start(0, MIXED[1])
    plans = [bench.plan([(0, PROMPTS[0])]), bench.plan([(0, None)]), bench.plan([(0, None)])]
    flying = [bench.runner.launch(plan) for plan in plans]
    got = [by_slot(plan, bench.runner.retire(step))[0] for plan, step in zip(plans, flying, strict=True)]
    assert got == alone(model, PROMPTS[0], MIXED[1], 3)


@pytest.mark.parametrize("params", [GREEDY, MIXED[1], CHANGED["everything"]])
def test_not_finite_logits_are_told_and_harm_nobody_else(model: Decoder, params: SamplingParams) -> None:
    bench = Bench(model)
    bench.start(0, params, PROMPTS[0], stop_ids=STOPS)
    bench.start(1, GREEDY)
    bench.step([(0, PROMPTS[0]), (1, PROMPTS[1])])
    pool = bench.runner._attention.pool
    pool.keys[0][bench.rows.page_table[0, 0] * 4] = torch.nan
    tokens = bench.step([(0, None), (1, None)])
    assert tokens[0] == NOT_FINITE
    assert tokens[1] == alone(model, PROMPTS[1], GREEDY, 2)[1]


def test_a_failed_step_is_answered_and_the_next_one_runs(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(model)
    bench.start(0, GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr(type(model), "forward", lambda *_: (_ for _ in ()).throw(RuntimeError("no\nluck")))
        result = bench.runner.retire(bench.runner.launch(bench.plan([(0, PROMPTS[0])])))
    assert result.error == "RuntimeError: no" and result.tokens.tolist() == [-1]
    bench.lengths[0] = bench.produced[0] = 0  # the slot and its pages have been taken in all the same
    assert bench.step([(0, PROMPTS[0])])[0] == alone(model, PROMPTS[0], GREEDY, 1)[0]


def apply(rows: Rows, updates: "np.ndarray[tuple[int, int], np.dtype[np.int32]]") -> None:
    changes = rows.page_changes(updates)
    assert changes is not None and len(np.unique(changes.index)) == len(changes.index)
    rows.apply_pages(*rows.staging.send([changes.index, changes.pages]))


def test_page_changes_apply_in_order(model: Decoder) -> None:
    rows = Bench(model).rows
    updates = np.array([(1, 2, 8), (0, 1, 5), (1, 2, 9), (3, 0, 7), (1, 2, 6), (0, 1, 4)], np.int32)
    apply(rows, updates)
    assert rows.page_table.nonzero().tolist() == [[0, 1], [1, 2], [3, 0]]
    assert [int(rows.page_table[at]) for at in ((0, 1), (1, 2), (3, 0))] == [4, 6, 7]
    assert rows.page_changes(np.zeros((0, 3), np.int32)) is None


def test_random_page_changes(model: Decoder) -> None:
    rows, rng = Bench(model).rows, np.random.default_rng(1)
    want = np.zeros((5, PAGES_PER_SLOT), np.int32)
    for size in (1, 3, 40, 500):
        updates = np.stack(
            [rng.integers(0, 4, size), rng.integers(0, PAGES_PER_SLOT, size), rng.integers(1, 99, size)], axis=1
        ).astype(np.int32)
        for slot, index, page in updates.tolist():
            want[slot, index] = page
        apply(rows, updates)
        assert (rows.page_table.numpy() == want).all()


def test_a_thousand_starts_in_one_step_send_a_handful_of_copies(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Bench(model, slots=1000).rows
    sent: list[int] = []
    send = rows.staging.send
    monkeypatch.setattr(rows.staging, "send", lambda arrays: sent.append(len(arrays)) or send(arrays))
    nothing = np.empty(0, np.int32)
    params = [SamplingParams(temperature=0.5 + s / 1000, seed=s, top_k=s or -1, min_p=0.1) for s in range(1000)]
    rows.start([SlotInit(slot, one, (), nothing, nothing) for slot, one in enumerate(params)])
    assert sent == [3]
    some = torch.tensor([0, 1, 3, 999])
    got = rows.parameters(some)
    assert got.temperature.tolist() == pytest.approx([0.5, 1.0, 0.503, 1.499])
    assert got.top_k.tolist() == [CARD.vocab_size, 1, 3, CARD.vocab_size] and got.seeds.tolist() == some.tolist()
    assert got.greedy.tolist() == [False, True, False, False]

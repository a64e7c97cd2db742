"""Log probabilities, hidden vectors and embeddings of a tiny model against transformers' own, in fp32."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from radixlm.config.card import ModelCard
from radixlm.loader.card import load_card
from radixlm.loader.source import resolve
from radixlm.loader.weights import LoadedModel, load_model
from radixlm.protocol.extras import OUTPUTS_ONLY, Extras, LogprobOptions, joined
from radixlm.protocol.sampling import SamplingParams
from tests.helpers.checkpoints import VOCAB, make_checkpoint
from tests.helpers.engine import LocalEngine, Output, greedy

BOUND = 1e-4
PROMPT = torch.randint(4, VOCAB, (70,), generator=torch.Generator().manual_seed(5)).tolist()
CHOSEN = (7, 3, 150)
TIGHT = {"max_total_tokens": 170, "schedule_conservativeness": 0.05}  # more is admitted than can be finished at once


@dataclass(frozen=True)
class Pair:
    """The same weights in both implementations."""

    reference: transformers.PreTrainedModel
    loaded: LoadedModel
    card: ModelCard

    def log_softmax(self, tokens: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = self.reference(torch.tensor([list(tokens)])).logits[0].float()
        return logits.log_softmax(-1)

    def hidden(self, tokens: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            states: Tensor = self.reference.model(torch.tensor([list(tokens)])).last_hidden_state[0]
        return states

    def engine(self, **flags: Any) -> LocalEngine:
        return LocalEngine(self.loaded, self.card, **{"max_total_tokens": 512, "max_running_requests": 8, **flags})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("qwen3")
    reference = make_checkpoint("qwen3", folder)
    source = resolve(str(folder))
    card = load_card(source)
    return Pair(reference, load_model(source, card, torch.float32, torch.device("cpu")), card)


def scored(output: Output) -> Extras:
    return joined(output.extras)


def check(pair: Pair, prompt: Sequence[int], output: Output, options: LogprobOptions) -> None:
    """Everything that was asked for is there once, and is what transformers says."""
    got, want = scored(output), pair.log_softmax([*prompt, *output.tokens])
    first = min(options.start, len(prompt) - 1)
    parts = [(got.prompt, first, prompt[first + 1 :]), (got.output, len(prompt) - 1, output.tokens)]
    for part, begin, tokens in parts:
        if not tokens:
            assert part is None
            continue
        assert part is not None
        assert part.tokens.tolist() == list(tokens)
        rows = want[begin : begin + len(tokens)]
        where = torch.arange(len(tokens))
        close(part.values, rows[where, torch.tensor(tokens)])
        if options.top:
            close(part.top_values, rows.topk(options.top).values)
            close(part.top_values, rows.gather(1, torch.from_numpy(part.top_tokens.astype(np.int64))))
        if options.token_ids:
            close(part.chosen_values, rows[:, list(options.token_ids)])


def close(got: Any, want: Tensor) -> None:
    assert got.shape == tuple(want.shape)
    assert np.abs(got - want.numpy()).max() < BOUND


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [32, 512])
def test_prompt_and_output_logprobs(pair: Pair, page_size: int, chunk: int, run_ahead: int) -> None:
    """Prompts around the chunk size, from several starts, in one batch with rows that want nothing; then all cached."""
    engine = pair.engine(page_size=page_size, chunked_prefill_size=chunk, run_ahead=run_ahead)
    asked = [
        (PROMPT[:31], LogprobOptions(0, 5, CHOSEN), greedy(6)),
        (PROMPT[:32], LogprobOptions(31, 0), greedy(3)),
        (PROMPT[:33], LogprobOptions(20, 2), greedy(5, frequency_penalty=0.7)),
        (
            PROMPT[:64],
            LogprobOptions(OUTPUTS_ONLY, 0, CHOSEN),
            SamplingParams(max_new_tokens=6, temperature=0.6, seed=3),
        ),
        (PROMPT[:65], LogprobOptions(0), greedy(0)),
        (PROMPT, None, greedy(4)),
        (PROMPT[::-1], LogprobOptions(69), greedy(1)),
    ]
    for _ in range(2):
        keys = [engine.submit(prompt, params, logprobs=options) for prompt, options, params in asked]
        engine.finish()
        for key, (prompt, options, _) in zip(keys, asked, strict=True):
            if options is None:
                assert engine.outputs[key].extras == []
            else:
                check(pair, prompt, engine.outputs[key], options)


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("penalized", [False, True])
def test_logprobs_of_samples_alone(pair: Pair, penalized: bool, run_ahead: int) -> None:
    """They come from sampling's own logits, unless one row of the step changes them: then all are scored anew."""
    engine = pair.engine(run_ahead=run_ahead)
    options = LogprobOptions(OUTPUTS_ONLY)
    asked = [
        (PROMPT[:20], SamplingParams(max_new_tokens=9, ignore_eos=True, seed=3, temperature=1.7)),
        (PROMPT[:33], SamplingParams(max_new_tokens=7, ignore_eos=True, seed=4, temperature=0.7, top_p=0.8)),
        (PROMPT[:40], greedy(8, frequency_penalty=0.7 * penalized)),
    ]
    keys = [engine.submit(prompt, params, logprobs=options) for prompt, params in asked]
    silent = engine.submit(PROMPT[:11], greedy(6))
    engine.finish()
    assert engine.outputs[silent].extras == []
    for (prompt, _), key in zip(asked, keys, strict=True):
        check(pair, prompt, engine.outputs[key], options)


def test_scored_positions_are_computed_and_no_more(pair: Pair) -> None:
    engine = pair.engine(page_size=16)
    engine.generate([PROMPT], greedy(1))
    cached = []
    for start in (0, 20, 69, OUTPUTS_ONLY):
        key = engine.submit(PROMPT, greedy(1), logprobs=LogprobOptions(start))
        engine.finish()
        finished = engine.outputs[key].finished
        assert finished is not None
        cached.append(finished.cached_tokens)
    assert cached == [0, 16, 64, 64]


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_retraction_repeats_and_loses_nothing(pair: Pair, run_ahead: int) -> None:
    engine = pair.engine(page_size=1, chunked_prefill_size=16, run_ahead=run_ahead, **TIGHT)
    options = LogprobOptions(3, 2)
    prompts = [PROMPT[:40], PROMPT[20:60], PROMPT[30:70], PROMPT[39::-1]]
    keys = [
        engine.submit(p, greedy(60, ignore_eos=False), stream=bool(i % 2), logprobs=options, hidden_start=0)
        for i, p in enumerate(prompts)
    ]
    engine.finish()
    retractions = 0
    for key, prompt in zip(keys, prompts, strict=True):
        output = engine.outputs[key]
        assert output.finished is not None
        retractions += output.finished.retractions
        check(pair, prompt, output, options)
        hidden = scored(output).hidden
        close(hidden, pair.hidden([*prompt, *output.tokens])[:-1])
    assert retractions > 0


def test_hidden_vectors_of_the_whole_prompt_or_the_last_position(pair: Pair) -> None:
    engine = pair.engine(page_size=16, chunked_prefill_size=32)
    for start in (0, len(PROMPT) - 1):
        for _ in range(2):
            key = engine.submit(PROMPT, greedy(4), hidden_start=start)
            engine.finish()
            output = engine.outputs[key]
            close(scored(output).hidden, pair.hidden([*PROMPT, *output.tokens])[start:-1])


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_embeddings_in_place_of_tokens(pair: Pair, run_ahead: int) -> None:
    """The embeddings of tokens give those tokens' answer, also chunked and retracted; nothing of it is cached."""
    flags = {"page_size": 1, "chunked_prefill_size": 24, "run_ahead": run_ahead}
    params = greedy(60, ignore_eos=False)
    table = pair.reference.get_input_embeddings().weight.detach().numpy()
    prompts = [PROMPT[:40], PROMPT[20:60], PROMPT[39::-1]]
    want = [output.tokens for output in pair.engine(**flags).generate(prompts, params)]
    engine = pair.engine(**flags, **TIGHT)
    keys = [
        engine.submit([0] * len(p), params, embeds=table[p], logprobs=LogprobOptions(OUTPUTS_ONLY)) for p in prompts
    ]
    keys.append(engine.submit([0] * 40, greedy(2)))
    engine.finish()
    assert [engine.outputs[key].tokens for key in keys[:-1]] == want
    for key, prompt in zip(keys[:-1], prompts, strict=True):
        check(pair, prompt, engine.outputs[key], LogprobOptions(OUTPUTS_ONLY))
    finished = [engine.outputs[key].finished for key in keys]
    assert [f.cached_tokens for f in finished if f is not None] == [0, 0, 0, 0]
    assert sum(f.retractions for f in finished if f is not None) > 0

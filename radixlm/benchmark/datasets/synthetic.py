"""Prompts made of arbitrary tokens: nothing is downloaded, and what they share is exactly what is asked for."""

import numpy as np
import numpy.typing as npt

from radixlm.base.errors import ConfigError
from radixlm.benchmark.datasets.spec import DatasetSpec, draw_lengths, fixed_length_requests
from radixlm.benchmark.outcome import Request
from radixlm.benchmark.tokens import Vocabulary, added_tokens, fit_texts, prompt_lengths


def random_ids(spec: DatasetSpec, vocabulary: Vocabulary, rng: np.random.Generator) -> list[Request]:
    """Each prompt counts up through the vocabulary from a start of its own.

    The starts differ as long as the vocabulary has enough ids, so no two prompts share even their first token.
    """
    count = spec.num_prompts
    input_lens = draw_lengths(rng, spec.random_input_len, spec.random_range_ratio, count)
    output_lens = draw_lengths(rng, spec.random_output_len, spec.random_range_ratio, count)
    ids = vocabulary.ordinary_ids
    starts = rng.choice(len(ids), count, replace=count > len(ids))
    prompts, fillers = [], []
    for start, length in zip(starts.tolist(), input_lens.tolist(), strict=True):
        counted = ids[np.arange(start, start + 2 * length) % len(ids)].tolist()
        prompts.append(counted[:length])
        fillers.append(counted[length:])
    return fixed_length_requests(spec, vocabulary, prompts, fillers, input_lens.tolist(), output_lens.tolist())


def generated_shared_prefix(spec: DatasetSpec, vocabulary: Vocabulary, rng: np.random.Generator) -> list[Request]:
    """Groups of prompts; those of a group share its system prompt and differ in the question after it.

    There are groups x prompts-per-group requests whatever --num-prompts says. As text the two parts are joined by a
    blank line. The order is shuffled unless `gsp_ordered`. With several turns each later one is another question.
    """
    if spec.gsp_num_turns > 1 and spec.tokenize_prompt:
        raise ConfigError("--gsp-num-turns: later turns follow an answer's text, so they need text prompts")
    groups = _groups(spec, rng)
    ratio = spec.gsp_range_ratio
    system_lens = draw_lengths(rng, spec.gsp_system_prompt_len, ratio, spec.gsp_num_groups)
    question_lens = draw_lengths(rng, spec.gsp_question_len, ratio, len(groups))
    output_lens = draw_lengths(rng, spec.gsp_output_len, ratio, len(groups))
    systems = [rng.choice(vocabulary.ordinary_ids, n).tolist() for n in system_lens]
    questions = [rng.choice(vocabulary.ordinary_ids, n).tolist() for n in question_lens]
    if spec.tokenize_prompt:
        prompts: list[str | list[int]] = [systems[g] + question for g, question in zip(groups, questions, strict=True)]
        lengths = [len(prompt) for prompt in prompts]
    else:
        codec = vocabulary.text_codec("dataset generated-shared-prefix without --tokenize-prompt")
        added = added_tokens(codec)
        system_texts = fit_texts(codec, systems, systems, [max(n - added, 1) for n in system_lens.tolist()])
        question_texts = fit_texts(codec, questions, questions, question_lens.tolist())
        texts = [f"{system_texts[g]}\n\n{question}" for g, question in zip(groups, question_texts, strict=True)]
        lengths = prompt_lengths(codec, texts)
        prompts = list(texts)
    requests = [Request(*row) for row in zip(prompts, lengths, output_lens.tolist(), strict=True)]
    if not spec.gsp_ordered:
        requests = [requests[i] for i in rng.permutation(len(requests))]
    if spec.gsp_num_turns > 1:
        return _with_turns(requests, spec, vocabulary, rng)
    return requests


def _with_turns(
    firsts: list[Request], spec: DatasetSpec, vocabulary: Vocabulary, rng: np.random.Generator
) -> list[Request]:
    """Each of `firsts` and its later turns, which are questions of the same length."""
    codec = vocabulary.text_codec("--gsp-num-turns")
    more = len(firsts) * (spec.gsp_num_turns - 1)
    lengths = draw_lengths(rng, spec.gsp_question_len, spec.gsp_range_ratio, more).tolist()
    ids = [rng.choice(vocabulary.ordinary_ids, n).tolist() for n in lengths]
    questions = iter(fit_texts(codec, ids, ids, lengths))
    requests: list[Request] = []
    for first in firsts:
        requests.append(first)
        for _ in range(spec.gsp_num_turns - 1):
            requests.append(Request(f"\n\n{next(questions)}", 0, first.output_tokens, follows=True))
    return requests


def _groups(spec: DatasetSpec, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The group of each request, ascending: equal shares, or drawn with weights rank^-alpha."""
    if spec.gsp_group_distribution == "uniform":
        return np.repeat(np.arange(spec.gsp_num_groups), spec.gsp_prompts_per_group)
    if spec.gsp_zipf_alpha is None or spec.gsp_zipf_alpha <= 0:
        raise ConfigError("--gsp-group-distribution zipf needs a positive --gsp-zipf-alpha")
    weights = np.arange(1, spec.gsp_num_groups + 1, dtype=np.float64) ** -spec.gsp_zipf_alpha
    count = spec.gsp_num_groups * spec.gsp_prompts_per_group
    return np.sort(rng.choice(spec.gsp_num_groups, count, p=weights / weights.sum()))

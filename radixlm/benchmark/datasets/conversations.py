"""Prompts taken from a file of conversations: the first turn is the prompt, the second one's length the answer's."""

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from radixlm.base.errors import ConfigError
from radixlm.benchmark.datasets.spec import DatasetSpec, draw_lengths, read_file
from radixlm.benchmark.outcome import Request
from radixlm.benchmark.tokens import Vocabulary, fit_text

MIN_TOKENS = 2
MIN_OUTPUT_OVERRIDE_TOKENS = 4


def sharegpt(spec: DatasetSpec, vocabulary: Vocabulary, rng: np.random.Generator) -> list[Request]:
    """A JSON list in ShareGPT's form, shuffled."""
    return _requests(spec, vocabulary, rng, _sharegpt_turns(spec.path, "sharegpt"), "sharegpt")


def custom(spec: DatasetSpec, vocabulary: Vocabulary, rng: np.random.Generator) -> list[Request]:
    """JSONL: `conversations` or `conversation`, a list of turns whose text is in `content` or `value`; shuffled."""
    turns = []
    for number, line in enumerate(read_file(spec.path, "custom").splitlines(), 1):
        if line.strip():
            turns.append(_first_turns(_decode(line, f"{spec.path}, line {number}")))
    return _requests(spec, vocabulary, rng, turns, "custom")


def random_text(spec: DatasetSpec, vocabulary: Vocabulary, rng: np.random.Generator) -> list[Request]:
    """First turns of a ShareGPT file, their tokens repeated or cut to the drawn length."""
    codec = vocabulary.text_codec("dataset random")
    count = spec.num_prompts
    turns = [pair[0] for pair in _sharegpt_turns(spec.path, "random") if pair is not None]
    order = rng.permutation(len(turns))
    input_lens = draw_lengths(rng, spec.random_input_len, spec.random_range_ratio, count, "--random-input-len")
    output_lens = draw_lengths(rng, spec.random_output_len, spec.random_range_ratio, count, "--random-output-len")
    requests: list[Request] = []
    encoded: dict[int, list[int]] = {}
    usable = [int(i) for i in order if codec_tokens(codec.encode(turns[i], False), encoded, int(i))]
    if not usable:
        raise ConfigError(f"{spec.path} holds no conversation with a usable first turn")
    for i, (input_len, output_len) in enumerate(zip(input_lens.tolist(), output_lens.tolist(), strict=True)):
        ids = encoded[usable[i % len(usable)]]
        repeated = [ids[j % len(ids)] for j in range(input_len)]
        if spec.tokenize_prompt:
            requests.append(Request(repeated, input_len, output_len))
        else:
            text = fit_text(codec, repeated, ids, input_len, True)
            requests.append(Request(text, len(codec.encode(text, True)), output_len))
    return requests

"""Prompts taken from a file of conversations: the first turn is the prompt, the second one's length the answer's."""

from typing import Any

import msgspec
import numpy as np

from radixlm.base.errors import ConfigError
from radixlm.benchmark.datasets.spec import DatasetSpec, draw_lengths, fixed_length_requests, read_file
from radixlm.benchmark.outcome import Request
from radixlm.benchmark.tokens import Vocabulary

MIN_TOKENS = 2


def sharegpt(spec: DatasetSpec, vocabulary: Vocabulary, rng: np.random.Generator) -> list[Request]:
    """A JSON list in ShareGPT's form, shuffled."""
    return _conversations(spec, vocabulary, rng, _sharegpt_turns(spec.dataset_path, "sharegpt"), "sharegpt")


def custom(spec: DatasetSpec, vocabulary: Vocabulary, rng: np.random.Generator) -> list[Request]:
    """JSONL: `conversations` or `conversation`, a list of turns whose text is in `content` or `value`; shuffled."""
    pairs = []
    for number, line in enumerate(read_file(spec.dataset_path, "custom").splitlines(), 1):
        pair = _first_two_turns(_decode(line, f"{spec.dataset_path}, line {number}")) if line.strip() else None
        if pair is not None:
            pairs.append(pair)
    return _conversations(spec, vocabulary, rng, pairs, "custom")


def random_text(spec: DatasetSpec, vocabulary: Vocabulary, rng: np.random.Generator) -> list[Request]:
    """First turns of a ShareGPT file, taken in shuffled order, their tokens repeated or cut to the drawn length."""
    codec = vocabulary.text_codec("dataset random")
    count = spec.num_prompts
    firsts = [first for first, _ in _sharegpt_turns(spec.dataset_path, "random") if first.strip()]
    if not firsts:
        raise ConfigError(f"{spec.dataset_path} holds no conversation of two turns")
    order = rng.permutation(len(firsts))[:count]
    token_lists = [ids for i in order if (ids := codec.encode(firsts[i], False))]
    input_lens = draw_lengths(rng, spec.random_input_len, spec.random_range_ratio, count)
    output_lens = draw_lengths(rng, spec.random_output_len, spec.random_range_ratio, count)
    sources = [token_lists[i % len(token_lists)] for i in range(count)]
    prompts = [
        [source[j % len(source)] for j in range(length)]
        for source, length in zip(sources, input_lens.tolist(), strict=True)
    ]
    return fixed_length_requests(spec, vocabulary, prompts, sources, input_lens.tolist(), output_lens.tolist())


def _conversations(
    spec: DatasetSpec, vocabulary: Vocabulary, rng: np.random.Generator, pairs: list[tuple[str, str]], name: str
) -> list[Request]:
    """Up to `num_prompts` requests in shuffled order, without those that are too short or too long for the context."""
    codec = vocabulary.text_codec(f"dataset {name}")
    context_tokens = spec.sharegpt_context_len or float("inf")
    requests: list[Request] = []
    for i in rng.permutation(len(pairs)):
        if len(requests) == spec.num_prompts:
            break
        prompt, answer = pairs[i]
        prompt += spec.prompt_suffix
        ids = codec.encode(prompt, True)
        output_tokens = spec.sharegpt_output_len or len(codec.encode(answer, False))
        if min(len(ids), output_tokens) >= MIN_TOKENS and len(ids) + output_tokens <= context_tokens:
            requests.append(Request(ids if spec.tokenize_prompt else prompt, len(ids), output_tokens))
    return requests


def _sharegpt_turns(path: str, dataset: str) -> list[tuple[str, str]]:
    rows = _decode(read_file(path, dataset), path)
    if not isinstance(rows, list):
        raise ConfigError(f"{path} is not a JSON list of conversations")
    pairs = (_first_two_turns(row) for row in rows)
    return [pair for pair in pairs if pair is not None]


def _decode(data: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where}: not JSON ({error})") from None


def _first_two_turns(row: Any) -> tuple[str, str] | None:
    """The texts of the first two turns, None when there are not two."""
    turns = (row.get("conversations") or row.get("conversation")) if isinstance(row, dict) else None
    if not isinstance(turns, list) or len(turns) < 2 or not all(isinstance(turn, dict) for turn in turns[:2]):
        return None
    first, second = (turn.get("content", turn.get("value")) for turn in turns[:2])
    return (first, second) if isinstance(first, str) and isinstance(second, str) else None

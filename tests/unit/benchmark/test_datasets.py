"""Datasets: exact lengths, the same for a seed, sharing what they should and nothing else."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from radixlm.base.errors import ConfigError
from radixlm.benchmark.datasets.spec import NAMES, DatasetSpec, build, draw_lengths
from radixlm.benchmark.tokens import Vocabulary
from tests.unit.benchmark.fakes import PairCodec

IDS_ONLY = Vocabulary.of_size(5000)
CODEC = PairCodec()
WITH_TEXT = Vocabulary.of_codec(CODEC)


@pytest.fixture
def sharegpt_file(tmp_path: Path) -> str:
    rows = [{"conversations": [{"value": "abc" * (i + 1)}, {"value": "de" * (i + 2)}]} for i in range(20)]
    rows += [{"conversations": [{"value": "only one turn"}]}, {"id": "no turns"}, {"conversations": []}]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(rows))
    return str(path)


def test_lengths_cover_the_range_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    assert set(draw_lengths(rng, 10, 0.5, 1000).tolist()) == set(range(5, 11))
    assert set(draw_lengths(rng, 4, 0.0, 1000).tolist()) == {1, 2, 3, 4}
    assert set(draw_lengths(rng, 7, 1.0, 50).tolist()) == {7}


def test_random_ids_have_exact_lengths_and_distinct_first_tokens() -> None:
    spec = DatasetSpec(
        dataset_name="random-ids", num_prompts=300, tokenize_prompt=True, random_input_len=50, random_output_len=9
    )
    requests = build(spec, IDS_ONLY, 1)
    assert len(requests) == 300
    assert all(len(r.prompt) == r.prompt_tokens and 1 <= r.prompt_tokens <= 50 for r in requests)
    assert all(1 <= r.output_tokens <= 9 for r in requests)
    assert len({r.prompt[0] for r in requests}) == 300
    assert all(b == (a + 1) % 5000 for r in requests for a, b in pairwise(r.prompt))
    fixed = build(replace(spec, random_range_ratio=1.0), IDS_ONLY, 1)
    assert {(r.prompt_tokens, r.output_tokens) for r in fixed} == {(50, 9)}


def test_more_prompts_than_ids_still_work() -> None:
    spec = DatasetSpec(dataset_name="random-ids", num_prompts=30, tokenize_prompt=True, random_input_len=12)
    requests = build(spec, Vocabulary.of_size(5), 1)
    assert len(requests) == 30 and all(0 <= i < 5 for r in requests for i in r.prompt)


@pytest.mark.parametrize("name", ["random-ids", "generated-shared-prefix"])
@pytest.mark.parametrize("ids", [True, False])
def test_a_seed_fixes_the_dataset(name: str, ids: bool) -> None:
    spec = DatasetSpec(
        dataset_name=name,
        num_prompts=20,
        tokenize_prompt=ids,
        random_input_len=30,
        gsp_num_groups=3,
        gsp_prompts_per_group=4,
        gsp_system_prompt_len=20,
        gsp_question_len=5,
    )
    vocabulary = IDS_ONLY if ids else WITH_TEXT
    assert build(spec, vocabulary, 7) == build(spec, vocabulary, 7)
    assert build(spec, vocabulary, 7) != build(spec, vocabulary, 8)


def test_text_prompts_encode_to_the_length_asked_for() -> None:
    spec = DatasetSpec(dataset_name="random-ids", num_prompts=50, random_input_len=40, random_range_ratio=0.2)
    lengths = [len(r.prompt) for r in build(replace(spec, tokenize_prompt=True), WITH_TEXT, 3)]
    requests = build(spec, WITH_TEXT, 3)
    assert [len(CODEC.encode(r.prompt)) for r in requests] == lengths
    assert [r.prompt_tokens for r in requests] == lengths


def test_special_ids_are_not_drawn() -> None:
    spec = DatasetSpec(dataset_name="random-ids", num_prompts=200, tokenize_prompt=True, random_input_len=300)
    drawn = {i for r in build(spec, WITH_TEXT, 0) for i in r.prompt}
    assert drawn == set(range(110))


def test_shared_prefix_groups_as_ids() -> None:
    spec = DatasetSpec(
        dataset_name="generated-shared-prefix",
        num_prompts=3,
        tokenize_prompt=True,
        gsp_num_groups=5,
        gsp_prompts_per_group=7,
        gsp_system_prompt_len=64,
        gsp_question_len=8,
        gsp_output_len=11,
    )
    requests = build(spec, IDS_ONLY, 2)
    assert len(requests) == 35  # num_prompts does not count here
    groups = Counter(tuple(r.prompt[:64]) for r in requests)
    assert sorted(groups.values()) == [7] * 5
    assert {r.prompt_tokens for r in requests} == {72} and {r.output_tokens for r in requests} == {11}
    assert len({tuple(r.prompt[64:]) for r in requests}) == 35
    order = [tuple(r.prompt[:64]) for r in requests]
    assert any(a != b for a, b in pairwise(order[:7])), "not shuffled"
    ordered = [tuple(r.prompt[:64]) for r in build(replace(spec, gsp_ordered=True), IDS_ONLY, 2)]
    assert all(len(set(ordered[i : i + 7])) == 1 for i in range(0, 35, 7))


def test_shared_prefix_as_text() -> None:
    spec = DatasetSpec(
        dataset_name="generated-shared-prefix",
        gsp_num_groups=2,
        gsp_prompts_per_group=3,
        gsp_system_prompt_len=31,
        gsp_question_len=6,
    )
    requests = build(spec, WITH_TEXT, 2)
    parts = [r.prompt.split("\n\n") for r in requests]
    assert all(len(part) == 2 for part in parts)
    assert Counter(Counter(system for system, _ in parts).values()) == {3: 2}
    assert {len(CODEC.encode(system)) for system, _ in parts} == {31}
    assert {len(CODEC.encode(question, False)) for _, question in parts} == {6}
    assert [r.prompt_tokens for r in requests] == [len(CODEC.encode(r.prompt)) for r in requests]


def test_zipf_groups() -> None:
    spec = DatasetSpec(
        dataset_name="generated-shared-prefix",
        tokenize_prompt=True,
        gsp_num_groups=10,
        gsp_prompts_per_group=100,
        gsp_system_prompt_len=8,
        gsp_question_len=2,
        gsp_group_distribution="zipf",
    )
    with pytest.raises(ConfigError, match="zipf-alpha"):
        build(spec, IDS_ONLY, 0)
    requests = build(replace(spec, gsp_zipf_alpha=1.0), IDS_ONLY, 0)
    shares = sorted(Counter(tuple(r.prompt[:8]) for r in requests).values(), reverse=True)
    assert sum(shares) == 1000
    assert 250 < shares[0] < 430  # 1 / H(10) = 0.341


def test_sharegpt(sharegpt_file: str) -> None:
    spec = DatasetSpec(dataset_path=sharegpt_file, num_prompts=15)
    requests = build(spec, WITH_TEXT, 4)
    assert len(requests) == 15
    for request in requests:
        turn = len(request.prompt) // 3 - 1
        assert request.prompt == "abc" * (turn + 1)
        assert request.prompt_tokens == len(CODEC.encode(request.prompt))
        assert request.output_tokens == turn + 2
    assert [len(r.prompt) for r in requests] != sorted(len(r.prompt) for r in requests)
    assert requests == build(spec, WITH_TEXT, 4)
    assert {r.output_tokens for r in build(replace(spec, sharegpt_output_len=9), WITH_TEXT, 4)} == {9}
    short = build(replace(spec, sharegpt_context_len=20, num_prompts=100), WITH_TEXT, 4)
    assert 0 < len(short) < 20 and all(r.prompt_tokens + r.output_tokens <= 20 for r in short)
    suffixed = build(replace(spec, prompt_suffix="jj"), WITH_TEXT, 4)
    assert all(r.prompt.endswith("jj") for r in suffixed)


def test_random_repeats_a_files_text_to_length(sharegpt_file: str) -> None:
    spec = DatasetSpec(dataset_name="random", dataset_path=sharegpt_file, num_prompts=40, random_range_ratio=1.0)
    spec = replace(spec, random_input_len=25, random_output_len=3)
    requests = build(spec, WITH_TEXT, 4)
    assert len(requests) == 40
    assert {len(CODEC.encode(r.prompt)) for r in requests} == {25} == {r.prompt_tokens for r in requests}
    assert all(set(r.prompt) <= set("abc") for r in requests)
    assert {len(r.prompt) for r in build(replace(spec, tokenize_prompt=True), WITH_TEXT, 4)} == {25}


def test_custom_reads_both_spellings(tmp_path: Path) -> None:
    path = tmp_path / "custom.jsonl"
    rows = [
        {"conversation": [{"content": "abcd"}, {"content": "efgh"}]},
        {"conversations": [{"value": "aabb"}, {"value": "ccddee"}, {"value": "ignored"}]},
        {"conversation": [{"content": "alone"}]},
    ]
    path.write_text("\n\n".join(json.dumps(row) for row in rows))
    spec = DatasetSpec(dataset_name="custom", dataset_path=str(path))
    assert sorted((r.prompt, r.output_tokens) for r in build(spec, WITH_TEXT, 0)) == [("aabb", 3), ("abcd", 2)]
    path.write_text("{broken\n")
    with pytest.raises(ConfigError, match="line 1: not JSON"):
        build(spec, WITH_TEXT, 0)


def test_clear_complaints(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--dataset-path"):
        build(DatasetSpec(), WITH_TEXT, 0)
    with pytest.raises(ConfigError, match="cannot read"):
        build(DatasetSpec(dataset_path=str(tmp_path / "none.json")), WITH_TEXT, 0)
    with pytest.raises(ConfigError, match="tokenizer"):
        build(DatasetSpec(dataset_name="random-ids"), IDS_ONLY, 0)
    (tmp_path / "empty.json").write_text("[]")
    with pytest.raises(ConfigError, match="no request"):
        build(DatasetSpec(dataset_path=str(tmp_path / "empty.json")), WITH_TEXT, 0)
    assert set(NAMES) >= {"random-ids", "random", "generated-shared-prefix", "custom", "sharegpt"}

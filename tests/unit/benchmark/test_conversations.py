"""Conversations and traces: what is sent after an answer, when, and over how many processes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixlm.base.errors import ConfigError
from radixlm.benchmark.backends import BACKENDS, BodySettings, continued
from radixlm.benchmark.datasets.spec import DatasetSpec, build
from radixlm.benchmark.gpu_matrix import MODELS, make_model
from radixlm.benchmark.http1 import Target
from radixlm.benchmark.load import Plan, arrivals_of, conversations
from radixlm.benchmark.outcome import Request
from radixlm.benchmark.serving import adapters, main
from radixlm.benchmark.tokens import Vocabulary
from radixlm.benchmark.workers import split_plan
from tests.unit.benchmark.fakes import PairCodec, stub_server


def render(messages: list[Any], tools: list[Any] | None) -> str:
    return "".join(f"a{message['content']}" for message in messages)


VOCABULARY = Vocabulary.of_codec(PairCodec(), render)
TURNS = [
    Request("q1", 2, 4),
    Request("q2", 0, 4, follows=True),
    Request("other", 1, 4),
    Request("q3", 0, 4, follows=True),
]


def test_what_follows_an_answer() -> None:
    assert continued(BACKENDS["sglang"], TURNS[0], " A", TURNS[1]).prompt == "q1 Aq2"
    chat = continued(BACKENDS["vllm-chat"], TURNS[0], " A", TURNS[1])
    assert chat.prompt == [
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": " A"},
        {"role": "user", "content": "q2"},
    ]


def test_conversations_stay_together() -> None:
    assert conversations(TURNS) == [range(2), range(2, 4)] and conversations([]) == []
    plan = Plan(Target("h", 1), "sglang", BodySettings("m"), TURNS, [0, 1, 2, 3], arrivals_of(TURNS, 1.0, 0))
    assert [part.indices for part in split_plan(plan, 2)] == [[0, 1], [2, 3]]
    due = plan.arrivals_s
    assert due[0] == due[1] == 0.0 < due[2] == due[3]
    timed = [Request("a", 1, 1, due_s=3.0), Request("b", 0, 1, follows=True), Request("c", 1, 1, due_s=1.5)]
    assert arrivals_of(timed, 99.0, 0) == [3.0, 3.0, 1.5]


def file_of(tmp_path: Path, *rows: Any) -> str:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def test_chat_bodies(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "bc"}]
    path = file_of(tmp_path, {"messages": said, "max_tokens": 9, "top_p": 0.5, "model": "x"}, {"messages": said})
    first, second = build(DatasetSpec("openai", path), VOCABULARY, 0)
    assert (first.prompt, first.output_tokens, first.extra) == (said, 9, {"top_p": 0.5})
    assert second.output_tokens == 256 and first.prompt_tokens == len(PairCodec().encode("abc", False)) == 2
    with pytest.raises(ConfigError, match="record 1: messages"):
        build(DatasetSpec("openai", file_of(tmp_path, {"messages": []})), VOCABULARY, 0)
    with pytest.raises(ConfigError, match="line 1"):
        (tmp_path / "data.jsonl").write_text("{")
        build(DatasetSpec("openai", str(tmp_path / "data.jsonl")), VOCABULARY, 0)


def test_agentic_trace(tmp_path: Path) -> None:
    talk = [("system", "s"), ("user", "u"), ("assistant", "no"), ("tool", "t"), ("user", "v"), ("assistant", "no")]
    rows = [{"messages": [{"role": role, "content": text} for role, text in talk]}]
    rows.append({"conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "no"}]})
    requests = build(DatasetSpec("agentic-trace", file_of(tmp_path, *rows), dataset_offset=1), VOCABULARY, 0)
    assert [[message["content"] for message in request.prompt] for request in requests] == [
        ["h"],
        ["s", "u"],
        ["t", "v"],
    ]  # type: ignore[union-attr]
    assert [request.follows for request in requests] == [False, False, True]
    assert {request.output_tokens for request in requests} == {220}
    short = DatasetSpec("agentic-trace", file_of(tmp_path, *rows), agentic_max_turns=1)
    assert len(build(short, VOCABULARY, 0)) == 2


def test_mooncake(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 5000, "input_length": 1024, "output_length": 7, "hash_ids": [3, 4]},
        {"timestamp": 4000, "input_length": 512, "output_length": 2, "hash_ids": [3]},
    ]
    spec = DatasetSpec("mooncake", file_of(tmp_path, *rows), mooncake_slowdown_factor=2.0, mooncake_num_rounds=2)
    first, more, second, _ = build(spec, VOCABULARY, 0)
    assert (first.due_s, second.due_s, first.output_tokens, second.output_tokens) == (0.0, 2.0, 2, 7)
    assert isinstance(second.prompt, str) and second.prompt.startswith(str(first.prompt)) and more.follows
    with pytest.raises(ConfigError, match="line 1"):
        build(DatasetSpec("mooncake", file_of(tmp_path, {"timestamp": 1})), VOCABULARY, 0)


def test_turns_of_a_shared_prefix() -> None:
    spec = DatasetSpec("generated-shared-prefix", gsp_num_groups=2, gsp_prompts_per_group=2, gsp_num_turns=3)
    requests = build(spec, VOCABULARY, 0)
    assert [request.follows for request in requests] == [False, True, True] * 4
    with pytest.raises(ConfigError, match="--gsp-num-turns"):
        build(DatasetSpec("generated-shared-prefix", gsp_num_turns=2, tokenize_prompt=True), VOCABULARY, 0)


def test_chat_templates() -> None:
    spec = DatasetSpec(
        "random-ids", num_prompts=2, random_input_len=8, random_range_ratio=1.0, apply_chat_template=True
    )
    for request in build(spec, VOCABULARY, 0):
        assert str(request.prompt).startswith("a") and request.prompt_tokens == len(
            PairCodec().encode(str(request.prompt))
        )
    with pytest.raises(ConfigError, match="chat template"):
        build(spec, Vocabulary.of_codec(PairCodec()), 0)


def test_adapters() -> None:
    assert adapters(["a", "b"], "distinct", 1.5, TURNS, 0) == ["a", "a", "b", "b"]
    many = [Request("p", 1, 1) for _ in range(4000)]
    drawn = adapters(["a", "b", "c"], "skewed", 2.0, many, 0)
    shares = np.array([drawn.count(name) for name in "abc"]) / 4000
    assert np.allclose(shares, np.array([4, 2, 1]) / 7, atol=0.03)


@pytest.mark.parametrize("backend", ["sglang-oai-chat", "lmdeploy-chat"])
def test_a_conversation_with_a_server(backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stub counts the words of the last message: 1 at first, then 2."""
    rows = [{"turns": ["one", {"role": "assistant", "content": "x"}, "two three"]} for _ in range(6)]
    out = tmp_path / "out.jsonl"
    folder = make_model(tmp_path / "model", MODELS["qwen3-0.6b"] | {"vocab_size": 600}, None)
    with stub_server() as port:
        words = ["--backend", backend, "--port", str(port), "--output-file", str(out), "--output-details"]
        words += [
            "--dataset-name",
            "agentic-trace",
            "--dataset-path",
            file_of(tmp_path, *rows),
            "--tokenizer",
            str(folder),
        ]
        words += ["--sharegpt-output-len", "4", "--client-processes", "2", "--plot-throughput", "--print-requests"]
        assert main(words) == 0
    line = json.loads(out.read_text())
    assert (line["completed"], line["failed"], line["output_lens"]) == (12, 0, [4] * 12)
    assert line["input_lens"] == [1, 2] * 6 and line["total_input_tokens"] == 18
    shown = capsys.readouterr().out
    assert "#11 answer:  tok tok tok tok" in shown and " s       48 " in shown

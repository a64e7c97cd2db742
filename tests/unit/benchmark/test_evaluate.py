"""Perplexity, choices and divergence against a server whose probabilities are known."""

import asyncio
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from radixlm.base.errors import ConfigError, RadixError
from radixlm.benchmark import evaluate
from radixlm.benchmark.evaluate import EvalOptions, Task, bucketed_kl, read_tasks, score_tasks, score_text, windows
from radixlm.benchmark.http1 import HttpClient, Target
from radixlm.benchmark.scoring import Scorer, Scores

TEXT = "abcabcabd" * 30


class LetterServer(HttpClient):
    """One token per letter; after a letter comes the next one of the alphabet with probability `p`, else anything."""

    def __init__(self, p: float, break_it: bool = False) -> None:
        super().__init__(Target("letters", 1))
        self.p = p
        self.break_it = break_it

    async def fetch(self, method: str, path: str, timeout_s: float, body: bytes = b"") -> tuple[int, bytes]:
        asked = json.loads(body or b"{}")
        if path == "/server_info":
            return 200, b'{"max_req_input_len": 8192}'
        if path == "/tokenize":
            return 200, json.dumps({"tokens": [[ord(c) for c in text] for text in asked["prompt"]]}).encode()
        if self.break_it:
            return 400, b'{"error": {"message": "return_logprob is not available"}}'
        ids, start = asked["input_ids"], asked["logprob_start_len"]
        entries: list[Any] = [[None, ids[start], None]]
        tops: list[Any] = [None]
        for place in range(start + 1, len(ids)):
            entries.append([self.logprob(ids[place - 1], ids[place]), ids[place], None])
            tops.append([[self.logprob(ids[place - 1], t), t, None] for t in range(97, 97 + 26)])
        meta = {"input_token_logprobs": entries, "input_top_logprobs": tops if "top_logprobs_num" in asked else None}
        return 200, json.dumps({"text": "", "meta_info": meta}).encode()

    def logprob(self, before: int, token: int) -> float:
        return math.log(self.p if token == before + 1 else (1 - self.p) / 25)


def test_windows_score_every_token_but_the_first_once() -> None:
    pieces = windows(list(range(100)), 16, 8, None)
    assert [token for ids, start in pieces for token in ids[start:]] == list(range(1, 100))
    assert all(start == 8 or ids[0] == 0 for ids, start in pieces) and max(len(ids) for ids, _ in pieces) == 24
    assert len(windows(list(range(100)), 16, 8, 2)) == 2 and windows([1], 16, 8, None) == []


def test_perplexity_is_that_of_the_whole_text() -> None:
    server = LetterServer(0.6)
    ids = [ord(c) for c in TEXT]
    nats = -sum(server.logprob(a, b) for a, b in itertools.pairwise(ids))
    for window in (7, 64, 1000):
        options = EvalOptions(text="t", window=window, context=5)
        found = asyncio.run(score_text(Scorer(server), None, options, TEXT))
        assert found["scored_tokens"] == len(TEXT) - 1
        assert ("perplexity_error" in found) == (window < len(TEXT))  # one window has no spread
        assert found["perplexity"] == pytest.approx(math.exp(nats / (len(TEXT) - 1)))
        assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(TEXT))


def test_divergence_of_two_servers() -> None:
    p, q = 0.6, 0.5
    options = EvalOptions(text="t", window=50, context=5, against="there")
    found = asyncio.run(score_text(Scorer(LetterServer(q)), Scorer(LetterServer(p)), options, TEXT))
    exact = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert found["kl_divergence"] == pytest.approx(exact, rel=1e-6) and found["same_likeliest_token"] == 1.0
    assert found["nll_minus_reference"] != 0
    same = asyncio.run(score_text(Scorer(LetterServer(p)), Scorer(LetterServer(p)), options, TEXT))
    assert same["kl_divergence"] == 0.0 == same["mean_logprob_difference"]


def test_a_bucket_is_a_lower_bound() -> None:
    p, q = [0.5, 0.3, 0.15, 0.05], [0.4, 0.4, 0.05, 0.15]
    exact = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    bounds = [
        bucketed_kl({i: math.log(p[i]) for i in range(k)}, {i: math.log(q[i]) for i in range(k)}) for k in range(5)
    ]
    rising = [round(bound, 12) for bound in bounds]
    assert bounds[0] == 0.0 and rising == sorted(rising) and bounds[4] == pytest.approx(exact)
    assert bucketed_kl({0: 0.0}, {1: 0.0}) == 0.0  # nothing in common says nothing


def test_choices(tmp_path: Path) -> None:
    tasks = [Task("x a", ["bcd", "bdd", "q"], 0), Task("a", ["zzzz", "bq"], 0)]
    found = asyncio.run(score_tasks(Scorer(LetterServer(0.6)), tasks))
    assert (found["questions"], found["accuracy"]) == (2, 0.0)  # the shortest wins as a whole: "q", "bq"
    assert found["accuracy_per_byte"] == 1.0 and found["accuracy_by_chance"] == pytest.approx((1 / 3 + 1 / 2) / 2)


def test_task_files(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    rows = [{"question": "q", "choices": ["a", "b"], "answer": 1}, {"query": "q", "options": ["x", "y"], "gold": "b"}]
    rows.append({"prompt": "q", "choices": ["yes", "no"], "label": "no"})
    file.write_text("\n".join(json.dumps(row) for row in rows))
    assert [task.answer for task in read_tasks(str(file))] == [1, 1, 1]
    for bad in (
        {"question": "q", "choices": ["a"], "answer": 0},
        {"question": "q", "choices": ["a", "b"], "answer": 2},
    ):
        file.write_text(json.dumps(bad))
        with pytest.raises(ConfigError, match="line 1"):
            read_tasks(str(file))
    for text in ("", "{", '{"question": 1}'):
        file.write_text(text)
        with pytest.raises(ConfigError):
            read_tasks(str(file))


def test_what_a_server_cannot_do_is_said_in_one_line() -> None:
    with pytest.raises(RadixError, match="return_logprob is not available"):
        asyncio.run(Scorer(LetterServer(0.5, break_it=True)).score([97, 98], 1))
    with pytest.raises(RadixError, match="no likeliest tokens"):
        evaluate.divergence([Scores([1], [0.0], [])], [Scores([1], [0.0], [])])


@pytest.mark.parametrize(
    "words", [[], ["--against", "http://u"], ["--text", "/none"], ["--base-url", "http://u", "--text", "t", "m"]]
)
def test_refusals(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(words) == 2 and capsys.readouterr().err.startswith("error:")

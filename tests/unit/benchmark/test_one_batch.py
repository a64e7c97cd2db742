"""One batch in this process on a tiny model, one over a fake wire, and the Engine's with a fake Engine."""

import asyncio
import json
from typing import Any, NoReturn

import pytest

from radixlm.base.errors import ConfigError, RadixError
from radixlm.benchmark import offline, one_batch, one_batch_server, programs, structured, tune
from radixlm.benchmark.batch_stream import BatchAnswer, Sequence, generate_batch
from radixlm.benchmark.http1 import HttpClient, Target
from radixlm.benchmark.launched import ServerProcess
from radixlm.benchmark.offline import RunOptions, measure
from radixlm.benchmark.one_batch import CaseOptions, Step, run, shown, summarize
from radixlm.benchmark.outcome import Request
from tests.helpers.engine import tiny_engine
from tests.helpers.tiny import CARD


def test_batches_on_a_tiny_model(capsys: pytest.CaptureFixture[str]) -> None:
    engine = tiny_engine(CARD, max_running_requests=3)
    lines = run(engine, CARD.vocab_size, CaseOptions(batch_size=(1, 3, 4), input_len=(8,), output_len=(6,)))
    assert [line["batch_size"] for line in lines] == [1, 3]
    assert "skipped: batch 4" in capsys.readouterr().err
    for line in lines:
        assert line["prefill_throughput"] == pytest.approx(line["batch_size"] * 8 / line["prefill_latency"])
        assert 0 < line["median_decode_latency"] < line["total_latency"]
        assert {"run_name", "median_decode_throughput", "overall_throughput", "median_decode_plan_ms"} <= line.keys()
    assert shown(lines).count("\n") == 2
    assert engine.scheduler.check() == []


@pytest.mark.parametrize("program", [one_batch, one_batch_server])
@pytest.mark.parametrize("option", ["--batch-size", "--input-len", "--output-len"])
@pytest.mark.parametrize("value", ["0", "-3"])
def test_sizes_are_at_least_one(program: Any, option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([option, "4", value]) == 2
    assert capsys.readouterr().err == f"error: {option}: must be at least 1, not {value}\n"


@pytest.mark.parametrize("program", [one_batch, one_batch_server, offline])
def test_files_are_tried_before_the_work(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--result-filename", "/nonexist/x", "demo"]) == 2
    assert capsys.readouterr().err.startswith("error: --result-filename: cannot write /nonexist/x")


@pytest.mark.parametrize("words", [["--bogus"], ["demo", "--bogus"], [], ["demo", "--page-size", "x"]])
@pytest.mark.parametrize("program", [one_batch_server, structured, tune])
def test_a_server_that_cannot_be_asked_for_is_not_started(
    program: Any, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(*_: Any) -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(ServerProcess, "__init__", started)
    assert program.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and (words[-1:] or ["--model-path"])[0] in said


def test_stages_add_up() -> None:
    steps = [Step(0.1, 0.2, 0.3, 0.4, 1, 1), Step(0.0, 0.5, 0.0, 0.0, 1, 2), Step(0.0, 9.0, 0.0, 0.0, 0, 2)]
    steps += [Step(0.25, 0.25, 0.25, 0.25, 0, 2)] * 2
    line = summarize(steps, 2, 10, 4)
    assert (line["prefill_latency"], line["prefill_steps"], line["total_latency"]) == (1.5, 2, 12.5)
    assert (line["median_decode_latency"], line["median_decode_throughput"]) == (1.0, 2.0)  # without the slow first
    assert line["overall_throughput"] == 28 / 12.5 and line["median_decode_wait_ms"] == 250.0


class BatchServer(HttpClient):
    """Answers a batch request with chunks cut at awkward places."""

    def __init__(self, chunks: list[dict[str, Any]], status: int = 200, done: bool = True) -> None:
        super().__init__(Target("batch", 1))
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + ("data: [DONE]\n\n" if done else "")
        self.data, self.status = text.encode(), status

    async def exchange(self, request: bytes, receiver: Any) -> None:
        receiver.on_status(self.status)
        for place in range(0, len(self.data), 50):
            receiver.on_body(self.data[place : place + 50], float(place))


def chunk(index: int, tokens: int, end: dict[str, Any] | None = None) -> dict[str, Any]:
    meta = {"completion_tokens": tokens, "prompt_tokens": 5, "cached_tokens": 2, "finish_reason": end}
    return {"index": index, "text": "x" * tokens, "meta_info": meta}


END = {"type": "length", "length": 2}


def ask(server: BatchServer) -> BatchAnswer:
    return asyncio.run(generate_batch(server, [[1], [2]], 2, {}, {}))


def test_a_batch_is_read_as_it_comes() -> None:
    answer = ask(BatchServer([chunk(0, 1), chunk(1, 1), chunk(1, 2, END), chunk(0, 2, END)]))
    assert [one.tokens for one in answer.sequences] == [2, 2]
    first, second = answer.sequences
    assert first.marks[0][0] < second.marks[0][0] < second.ended_s < first.ended_s
    assert (first.prompt_tokens, first.cached_tokens) == (5, 2)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (BatchServer([chunk(0, 2, END)]), "before every answer"),
        (BatchServer([chunk(0, 2, END), chunk(1, 2, END)], done=False), "before every answer"),
        (BatchServer([{"error": {"message": "no"}}]), "server error"),
        (BatchServer([chunk(0, 1, {"type": "abort", "message": "gone"}), chunk(1, 2, END)]), "gone"),
        (BatchServer([], status=503), "HTTP 503"),
    ],
)
def test_a_batch_that_fails_is_told(server: BatchServer, said: str) -> None:
    with pytest.raises(RadixError, match=said):
        ask(server)


def test_one_batch_numbers() -> None:
    """Two answers of 5 tokens: first tokens at 1 and 2 s, ends at 5 and 6 s, one token a second."""
    fast = Sequence([(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4), (5.0, 5)], 5.0, 10, 4)
    slow = Sequence([(2.0, 1), (3.0, 2), (4.0, 3), (5.0, 4), (6.0, 5)], 6.0, 10, 0)
    options = one_batch_server.CaseOptions()
    line = one_batch_server.line_of(BatchAnswer([fast, slow], 0.0, 6.0), (2, 10, 5), options, {})
    assert (line["latency"], line["last_ttft"], line["input_throughput"]) == (6.0, 2.0, 10.0)
    assert (line["output_throughput"], line["overall_throughput"]) == (2.5, 5.0)
    assert (line["steady_state_window_s"], line["steady_state_output_throughput"]) == (3.0, 2.0)
    assert (line["cache_hit_rate"], line["total_output_tokens"], line["num_early_stopped"]) == (0.2, 10, 0)


class FakeEngine:
    """Remembers what it was asked, and answers with what was wanted."""

    def generate(self, prompt: Any = None, sampling_params: Any = None, input_ids: Any = None) -> Any:
        self.asked = (prompt, sampling_params, input_ids)
        count = len(prompt if prompt is not None else input_ids)
        return [{"meta_info": {"prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 1}} for _ in range(count)]

    def get_server_info(self) -> dict[str, Any]:
        return {"internal_states": [{"gen_throughput": 7.0}]}


def test_offline_numbers() -> None:
    engine: Any = FakeEngine()
    requests = [Request([1, 2, 3], 3, 4), Request([1, 2, 4], 3, 4)]
    line = measure(engine, requests, RunOptions(extra_request_body={"top_k": 5}))
    assert (line["total_input_tokens"], line["total_output_tokens"], line["cached_tokens"]) == (6, 8, 2)
    assert line["total_throughput"] == pytest.approx(14 / line["total_latency"]) and line["last_gen_throughput"] == 7.0
    wish = {"temperature": 0.0, "ignore_eos": True, "top_k": 5, "max_new_tokens": 4}
    assert engine.asked == (None, [wish, wish], [[1, 2, 3], [1, 2, 4]])
    measure(engine, [Request("text", 3, 4)], RunOptions())
    assert engine.asked[0] == ["text"]


def test_every_program_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert programs.main([]) == 0
    shown = capsys.readouterr().out
    for name in programs.ROWS:
        assert name in shown
        with pytest.raises(SystemExit) as left:
            programs.PROGRAMS.load(name)(["--help"])
        assert left.value.code == 0 and f"radixlm bench {name}" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="knows no 'x'"):
        programs.main(["x"])

"""The simulator: traces read, costs fitted, the real scheduler run over them, and several settings side by side."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixlm.base.errors import ConfigError, RadixError
from radixlm.config.groups import ScheduleConfig
from radixlm.launch.cli import main as radixlm
from radixlm.protocol.plan import SAMPLE, StepPlan
from radixlm.tools.simulate import world as world_module
from radixlm.tools.simulate.cost import PARTS, Machine, StepCost, fit, units
from radixlm.tools.simulate.live import play
from radixlm.tools.simulate.report import summarize
from radixlm.tools.simulate.trace import TraceRequest, read_trace
from radixlm.tools.simulate.world import Run, Setting, World
from tests.wire.serving import live_server

MACHINE = Machine("m", "cpu", "float32", 4096, 16, 256, 2048, 16, 0)
SECONDS = {"step": 0.01, "token_0_1": 0.001, "token_16_32": 0.0005, "sampled": 0.0002, "decode_key": 1e-6}
COST = StepCost(MACHINE, SECONDS | {"chunk_key": 1e-8}, 100, 0.0, 0.0)


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def simulate(trace: list[TraceRequest], pool_tokens: int = 4096, run_ahead: int = 0, **schedule: Any) -> Run:
    config = ScheduleConfig(chunked_prefill_size=256, max_running_requests=16, **schedule)
    return World(Setting(config, pool_tokens, 16, 2048, run_ahead=run_ahead), COST, trace).play()


def plan(decodes: list[int], chunks: list[tuple[int, int]]) -> StepPlan:
    starts = np.array(decodes + [start for start, _ in chunks], np.int32)
    counts = np.array([1] * len(decodes) + [count for _, count in chunks], np.int32)
    flags, none = np.full(len(starts), SAMPLE, np.int32), np.zeros(0, np.int32)
    return StepPlan(0, len(decodes), starts, starts, counts, flags, none, none, none, [])


def test_a_step_in_units() -> None:
    found = dict(zip(PARTS, units(plan([9, 19], [(10, 4)])), strict=True))
    assert (found["step"], found["sampled"], found["chunk"]) == (1, 3, 1)
    assert sum(found[name] for name in PARTS if name.startswith("token_")) == 6
    assert found["decode_key"] == 30 and found["chunk_key"] == 11 + 12 + 13 + 14


def test_a_fit_finds_what_made_the_times_and_leaves_outliers_out() -> None:
    rng = np.random.default_rng(0)
    shapes = [
        units(plan(rng.integers(1, 500, rng.integers(0, 16)).tolist(), [(0, int(n))] if n else []))
        for n in rng.integers(0, 3, 400) * rng.integers(1, 250, 400)
    ]
    shapes = [shape for shape in shapes if shape[1]]
    seconds = [float(shape @ COST.coefficients()) * (5 if index % 40 == 0 else 1) for index, shape in enumerate(shapes)]
    found = fit(MACHINE, shapes, seconds)
    assert found.median_error < 0.01 and found.p90_error < 0.03
    fresh = units(plan([100] * 7, [(64, 100)]))
    assert fresh @ found.coefficients() == pytest.approx(fresh @ COST.coefficients(), rel=0.05)


def test_traces_of_every_form(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 1500, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 500, "input_ids": [7, 8, 9], "output_length": 2, "max_tokens": 10, "priority": 3},
        {"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [1, 3], "cache_salt": "s"},
        {"timestamp": 2000, "conversations": [{"value": "abc"}, {"content": "de"}], "routing_key": "k"},
    ]
    found = read_trace(write(tmp_path / "t", rows), encode=lambda text: [ord(c) for c in text], slowdown=2.0)
    assert [r.arrival_s for r in found] == [0.0, 1.0, 2.0, 3.0]
    plain, salted, long, text = (r.prompt() for r in found)
    assert plain.tolist() == [7, 8, 9] and text.tolist() == [97, 98, 99]
    assert (long[:512] == salted[:512]).all() and not set(long[512:]) & set(salted[512:])
    assert [r.prompt_tokens for r in found] == [3, 600, 700, 3] and found[3].output_tokens == 2
    assert (found[0].most_tokens, found[0].priority, found[1].cache_salt, found[3].routing_key) == (10, 3, "s", "k")


@pytest.mark.parametrize(
    "row,complaint",
    [
        ({"timestamp": 0, "output_length": 1}, "line 2: no input_ids"),
        ({"timestamp": 0, "input_length": 9}, "line 2: no output_length"),
        ({"timestamp": 0, "input_length": 900, "hash_ids": [1], "output_length": 1}, "hash_ids of 512 tokens"),
        ({"timestamp": 0, "input_length": "x"}, r"line 2: Expected `int \| null`, got `str` - at `\$.input_length`"),
        ({"timestamp": 0, "prompt": "x", "output_length": 1}, "needs --tokenizer"),
        ({"timestamp": 0, "input_length": 1, "output_length": 9, "max_tokens": 3}, "more than max_tokens"),
        ({"input_length": 9, "output_length": 1}, "--request-rate"),
    ],
)
def test_what_a_trace_may_not_say(tmp_path: Path, row: dict[str, Any], complaint: str) -> None:
    good = {"timestamp": 0, "input_length": 1, "output_length": 1}
    with pytest.raises(ConfigError, match=complaint):
        read_trace(write(tmp_path / "t", [good, row]))


def request(arrival_s: float, prompt: int, output: int, most: int | None = None, first: int = 0) -> TraceRequest:
    ids = np.arange(first, first + prompt, dtype=np.int32)
    return TraceRequest(arrival_s, prompt, output, lambda: ids, most)


def test_a_lone_request_takes_what_its_steps_cost() -> None:
    run = simulate([request(2.0, 300, 3)])
    steps = [plan([], [(0, 256)]), plan([], [(256, 44)]), plan([300], []), plan([301], [])]
    steps[0].flags[:] = 0
    costs = [float(units(step) @ COST.coefficients()) for step in steps]
    fate = run.fates[0]
    assert fate.first_s == pytest.approx(2.0 + sum(costs[:2])) and fate.end_s == pytest.approx(2.0 + sum(costs))
    assert run.computed_tokens == 302 and run.busy_s == pytest.approx(sum(costs))


def test_answers_end_where_the_trace_says() -> None:
    run = simulate([request(0.0, 30, 4, most=900), request(0.0, 30, 6, first=1000), request(0.0, 5000, 6)])
    finished = [fate.finished for fate in run.fates]
    assert [f.completion_tokens for f in finished if f] == [4, 6, 0]
    assert [f.reason.type for f in finished if f] == ["stop", "length", "abort"]
    assert summarize({}, run).refused == 1


def test_what_is_refused_while_nothing_runs_holds_nothing_up() -> None:
    run = simulate([request(0, 3000, 5), request(1, 10, 3), request(2, 3000, 5)])
    assert [f.reason.type for fate in run.fates if (f := fate.finished)] == ["abort", "length", "abort"]
    assert [fate.end_s for fate in run.fates][::2] == [0.0, 2.0]


def test_a_prompt_beyond_the_context_is_never_made() -> None:
    def never() -> np.ndarray[Any, np.dtype[np.int32]]:
        raise AssertionError

    run = simulate([TraceRequest(0.0, 10**12, 5, never), request(1, 10, 3)])
    assert [f.reason.type for fate in run.fates if (f := fate.finished)] == ["abort", "length"]


def busy_trace() -> list[TraceRequest]:
    rng = np.random.default_rng(1)
    times, prompts = np.cumsum(rng.exponential(0.7, 40)).tolist(), rng.integers(20, 400, 40).tolist()
    outputs = rng.integers(1, 100, 40).tolist()
    return [
        request(time, prompt, output, 200 if i % 3 else None, 500 * (i % 9))
        for i, (time, prompt, output) in enumerate(zip(times, prompts, outputs, strict=True))
    ]


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("pool_tokens", [4096, 640])
def test_steps_that_are_alike_may_be_taken_at_once(
    run_ahead: int, pool_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = busy_trace()
    fast = simulate(trace, pool_tokens, run_ahead, schedule_conservativeness=0.1)
    monkeypatch.setattr(world_module, "SHORTEST_COAST", 1 << 40)
    slow = simulate(trace, pool_tokens, run_ahead, schedule_conservativeness=0.1)
    times = [[(fate.first_s, fate.end_s) for fate in run.fates] for run in (fast, slow)]
    assert np.allclose(times[0], times[1], rtol=1e-9, atol=1e-9)
    assert slow.computed_tokens == fast.computed_tokens
    assert (fast.steps, fast.retractions, fast.evicted_tokens) == (slow.steps, slow.retractions, slow.evicted_tokens)
    assert pool_tokens == 4096 or slow.evicted_tokens > 0


def test_settings_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = {"input_length": 600, "output_length": 20}
    rows = [{"timestamp": 40 * i, "hash_ids": [i % 12, 100 + i], **lengths} for i in range(80)]
    COST.save(str(tmp_path / "cost"))
    arguments = ["simulate", "--trace", write(tmp_path / "t", rows), "--cost", str(tmp_path / "cost")]
    wanted = ["--policy", "fcfs", "lpm", "--pool-tokens", "4k", "16k", "--json", str(tmp_path / "out")]
    assert radixlm([*arguments, *wanted]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [(line["setting"]["policy"], line["setting"]["pool"]) for line in lines] == [
        ("fcfs", 4000), ("fcfs", 16000), ("lpm", 4000), ("lpm", 16000),
    ]  # fmt: skip
    hits = [line["hit_rate"] for line in lines]
    assert hits[0] < hits[1] and hits[2] > hits[0] and all(line["requests"] == 80 for line in lines)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("80 requests") and shown[1].split()[:3] == ["policy", "pool", "hit"] and len(shown) == 6


def test_against_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not known of it is not said to be 0, and what it refuses is counted."""
    lengths = [(20, 4), (10**9, 4), (30, 4)]
    rows = [{"timestamp": i, "input_length": prompt, "output_length": new} for i, (prompt, new) in enumerate(lengths)]
    COST.save(str(tmp_path / "cost"))
    trace = write(tmp_path / "t", rows)
    words = ["simulate", "--trace", trace, "--cost", str(tmp_path / "cost"), "--policy", "fcfs", "lpm"]
    with live_server() as server:
        assert radixlm([*words, "--against", server.base, "--json", str(tmp_path / "out")]) == 0
        alone = [TraceRequest(0.0, 10**9, 1, lambda: np.zeros(0, np.int32))]
        with pytest.raises(RadixError, match="refuses every request: a prompt of 1000000000 tokens"):
            play(server.base, alone)
    simulated, _, measured = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert measured["setting"] == dict.fromkeys(simulated["setting"]) | {"policy": "measured"}
    assert [measured[name] for name in ("busy_share", "evicted_tokens", "steps")] == [None] * 3
    assert [measured[name] for name in ("requests", "refused", "retractions")] == [2, 1, 0]
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line[0] == "measured" and line[-3:] == ["-", "0", "1"]


def test_wrong_command_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write(tmp_path / "t", [{"timestamp": 0, "input_length": 1, "output_length": 1}])
    assert radixlm(["simulate"]) == 2
    assert radixlm(["simulate", "--trace", trace]) == 2
    assert radixlm(["simulate", "--trace", trace, "--cost", trace]) == 2
    assert "is not a cost file" in capsys.readouterr().err
    for option in ("--request-rate", "--slowdown", "--pool-tokens", "--page-size", "--context-length"):
        for value in ("0", "-1", "nan", "x"):
            with pytest.raises(SystemExit, match="2"):
                radixlm(["simulate", "--trace", trace, f"{option}={value}"])
            assert f"argument {option}" in capsys.readouterr().err

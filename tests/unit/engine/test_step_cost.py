"""The cost of a decode step, measured on a tiny model; what cannot be measured is refused before a model is read."""

import re
import shlex
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
import torch

from radixlm.base.errors import ConfigError, RadixError
from radixlm.engine import step_cost
from radixlm.engine.build import Engine
from radixlm.engine.step_cost import PHASES, PROGRAM, CostOptions, Driver, main, run
from radixlm.protocol.sampling import SamplingParams
from tests.helpers.engine import tiny_engine
from tests.helpers.tiny import CARD

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return tiny_engine(msgspec.structs.replace(CARD, vocab_size=128, context_len=512), max_running_requests=3)


def test_rows_that_fit_are_measured(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, rows = run(engine, CostOptions(batches=(1, 4, 2), steps=3, context=8, prefill=(16,)))
    assert [row["batch"] for row in rows] == [1, 2] and [one["prompt"] for one in prompts] == [16]
    assert all(row[f"{name}_us"] > 0 for row in rows for name in ("step", *PHASES))
    assert "skipped: 4 rows: more than the 3 requests" in capsys.readouterr().err
    assert engine.scheduler.idle and engine.scheduler.check() == []


@pytest.mark.parametrize("options", [CostOptions(context=999_999), CostOptions(prefill=(8, 999_999))])
def test_lengths_that_never_fit_are_refused(engine: Engine, options: CostOptions) -> None:
    named = "--prefill" if options.prefill else "--context"
    with pytest.raises(ConfigError, match=rf"^{named} 999999 and .* more than the \d+ that one request may have"):
        run(engine, options)


@pytest.mark.timeout(20)
def test_rows_that_never_decode_together_are_told(engine: Engine) -> None:
    params = SamplingParams(temperature=0.0, max_new_tokens=2, ignore_eos=True)
    with pytest.raises(RadixError, match="never decode all at once"):
        Driver(engine).fill(5, 8, 1_000, params)
    assert engine.scheduler.idle


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "0"], "--steps: must be at least 1"),
        (["--context", "0"], "--context: must be at least 1"),
        (["--batches", "4", "0"], "--batches: must be at least 1"),
        (["--prefill", "0"], "--prefill: must be at least 1"),
        (["--flags", "[]"], "--flags: must be a JSON object"),
        (["--flags", '{"bogus": 1}'], "unknown flag --bogus"),
        (["--profile"], "--profile asks a CUDA device"),
        (["--trace", "x"], "--trace needs --profile"),
        (["--out", "/nonexist/x"], "--out: cannot write /nonexist/x"),
        (["--bogus"], "unknown argument --bogus"),
    ],
)
def test_wrong_command_lines(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(*_: Any) -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(step_cost, "build", read)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_what_the_docs_say_is_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"`(?:python -m radixlm\.engine\.)?step_cost (-[^`]+)`", (DOCS / "performance.md").read_text())
    assert len(lines) >= 2
    for line in lines:
        PROGRAM.read(shlex.split(line))

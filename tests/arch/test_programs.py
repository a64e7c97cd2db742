"""What is said to run as `python -m` does."""

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from radixlm.benchmark import programs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = sorted((ROOT / "radixlm").rglob("*.py"))
BENCH = {f"radixlm.benchmark.{name.replace('-', '_')}": f"radixlm bench {name}" for name in programs.ROWS}
COMMANDS = {f"radixlm.tools.{name}": f"radixlm {name}" for name in ("chat", "doctor", "profile", "simulate", "size")}
OWN = (
    "engine.step_cost",
    "tools.step_plot",
    *(f"benchmark.{n}" for n in ("cpu_matrix", "front", "gpu_matrix", "stub")),
)
MODULES = BENCH | COMMANDS | {f"radixlm.{name}": f"python -m radixlm.{name}" for name in OWN}


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("module", MODULES)
def test_modules_that_are_programs(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert left.value.code == 0 and capsys.readouterr().out.startswith(f"usage: {MODULES[module]} ")


def test_every_module_that_a_text_runs() -> None:
    named = {
        word for page in (*PAGES, *SOURCES) for word in re.findall(r"python -m (radixlm[\w.]*\w)", page.read_text())
    }
    assert {"radixlm.benchmark.serving", "radixlm.engine.step_cost", "radixlm.tools.step_plot"} < named
    for module in named - {"radixlm.benchmark.NAME"}:
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None, module
        file = Path(spec.origin)
        main = file.with_name("__main__.py") if file.name == "__init__.py" else file
        assert main.exists() and '__name__ == "__main__"' in main.read_text(), module

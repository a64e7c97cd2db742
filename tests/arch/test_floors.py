"""The import floors of docs/architecture.md hold, and `import radixlm` is light."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "radixlm"
HEAVY = {"torch", "transformers"}
TORCH_FREE = [
    "base", "config", "protocol", "observability", "scheduler", "frontend", "server", "benchmark",
    "cache/radix.py", "cache/pages.py", "cache/manager.py", "loader/source.py", "loader/card.py",
    "loader/tokenizer.py", "loader/demo.py",
]  # fmt: skip


def floors() -> dict[str, int]:
    """Package name -> floor, from the fenced block under "Floors" in docs/architecture.md."""
    text = (ROOT / "docs/architecture.md").read_text()
    block = text.split("## Floors", 1)[1].split("```")[1]
    table: dict[str, int] = {}
    for line in block.strip().splitlines():
        match = re.match(r"(\d+)\s{2,}(\w+(?:  \w+)*)", line)
        assert match, line
        for name in match.group(2).split():
            table[name] = int(match.group(1))
    return table


def imports(path: Path) -> list[tuple[int, str]]:
    """Every absolute module imported anywhere in the file, inside functions and type-checking blocks too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} has a relative import"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def test_every_package_has_a_floor() -> None:
    packages = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert packages <= floors().keys()


def test_imports_go_down() -> None:
    table = floors()
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        if len(parts) == 1:  # radixlm/__init__.py and the python -m aliases sit above all floors
            continue
        for line, module in imports(path):
            pieces = module.split(".")
            if pieces[0] != "radixlm" or len(pieces) < 2 or pieces[1] not in table or pieces[1] == parts[0]:
                continue
            if table[pieces[1]] >= table[parts[0]]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("where", TORCH_FREE)
def test_rooms_that_know_no_tensor(where: str) -> None:
    target = PACKAGE / where
    files = [target] if target.is_file() else sorted(target.rglob("*.py"))
    assert files
    wrong = [f"{f}:{line} {m}" for f in files for line, m in imports(f) if m.split(".")[0] in HEAVY]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", ["radixlm", "radixlm.launch.cli", "radixlm.api.runtime", "radixlm.server.app"])
def test_no_torch_in_the_front_process(module: str) -> None:
    code = f"import sys, {module}; print(sorted({HEAVY} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

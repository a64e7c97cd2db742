"""Building: one OpenMP runtime, racing processes, no compiler, other instruction sets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from radixlm.kernels.native import build
from radixlm.kernels.native.library import Library, library, why_not
from radixlm.kernels.native.linear import NativeLinear

needs_library = pytest.mark.skipif(library() is None, reason=str(why_not()))


def run(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@needs_library
def test_torch_and_the_kernels_share_one_openmp_runtime() -> None:
    """In a process of its own: libraries that other tests import may bring runtimes too."""
    script = (
        "from pathlib import Path\n"
        "from radixlm.kernels.native import build, library\n"
        "assert library.library() is not None\n"
        "names = {line.split()[-1] for line in open('/proc/self/maps', encoding='utf-8')}\n"
        "runtimes = {name for name in names if Path(name).name.startswith(('libgomp', 'libiomp', 'libomp'))}\n"
        "print(runtimes == {str(build.openmp_runtime())}, runtimes)\n"
    )
    out, err = run(script).communicate(timeout=120)
    assert out.startswith("True"), out + err


@needs_library
def test_processes_that_build_at_once_all_get_a_whole_library(tmp_path: Path) -> None:
    sources = tmp_path / "src"
    sources.mkdir()
    (sources / "one.cpp").write_text('extern "C" int answer() { return 42; }\n')
    script = (
        "import ctypes, pathlib, sys\n"
        "from radixlm.kernels.native import build\n"
        "build.SOURCES = pathlib.Path(sys.argv[1])\n"
        "path = build.built_library()\n"
        "print(path, ctypes.CDLL(str(path)).answer())\n"
    )
    racers = [run(script, str(sources), RADIXLM_CACHE=str(tmp_path / "cache")) for _ in range(3)]
    replies = [racer.communicate(timeout=120) for racer in racers]
    assert {racer.returncode for racer in racers} == {0}, replies
    assert len({reply[0] for reply in replies}) == 1
    assert replies[0][0].endswith(" 42\n")
    kept = list((tmp_path / "cache" / "native").iterdir())
    assert [path.suffix for path in kept] == [".so"]


def test_without_a_compiler_torch_does_it(tmp_path: Path) -> None:
    script = (
        "import torch\n"
        "from radixlm.attention.base import AttentionFacts\n"
        "from radixlm.attention.table import choose\n"
        "from radixlm.config.groups import DeviceConfig\n"
        "from radixlm.kernels.activation import gate_mul\n"
        "from radixlm.kernels.linear import PackedLinear, pack_linear\n"
        "layer = pack_linear(torch.eye(4), None)\n"
        "assert type(layer) is PackedLinear\n"
        "assert torch.equal(layer(torch.ones(1, 4)), torch.ones(1, 4))\n"
        "assert gate_mul(torch.ones(1, 4)).shape == (1, 2)\n"
        "facts = AttentionFacts('cpu', torch.float32, 16, 4, 2, 64, None)\n"
        "chosen, why = choose(facts, DeviceConfig())\n"
        "print(chosen.func.name, why, sep='|')\n"
    )
    process = run(script, PATH=str(tmp_path), CXX="g++", RADIXLM_CACHE=str(tmp_path))
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert stdout.startswith("torch_native|") and "not native_cpu: no C++ compiler (g++) on the PATH" in stdout
    assert stderr.count("native CPU kernels are not used") == 1


@needs_library
def test_a_failing_compilation_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.cpp").write_text("int main( {\n")
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    monkeypatch.setenv("RADIXLM_CACHE", str(tmp_path / "cache"))
    with pytest.raises(build.BuildError, match=r"compilation failed: .*bad\.cpp.*error") as failure:
        build.built_library()
    assert "\n" not in str(failure.value)
    assert not list((tmp_path / "cache" / "native").iterdir())


@needs_library
@pytest.mark.slow
@pytest.mark.parametrize(("target", "needs"), [("haswell", "avx2"), ("skylake-avx512", "avx512bw")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_instruction_sets(target: str, needs: str, dtype: torch.dtype) -> None:
    if needs not in Path("/proc/cpuinfo").read_text(encoding="utf-8").split():
        pytest.skip(f"this CPU has no {needs}")
    kernels = Library(str(build.built_library(target)))
    for out, width, rows in [(50, 34, 1), (96, 576, 5), (300, 128, 33)]:
        weight, bias, x = (torch.randn(shape).to(dtype) for shape in ((out, width), (out,), (rows, width)))
        exact = F.linear(x.double(), weight.double(), bias.double())
        y = NativeLinear(weight, bias, kernels)(x)
        tolerance = 2.0**-8 if dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(y.double(), exact, rtol=tolerance, atol=1e-4)

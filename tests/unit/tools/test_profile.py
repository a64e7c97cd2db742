"""The trace reader's sums, on a trace small enough to add up by hand."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from radixlm.base.errors import ConfigError
from radixlm.tools.profile import break_down, group_of, main, read_trace, report, short_name


def event(name: str, start: float, us: float, kind: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": kind, "ts": start, "dur": us}


TRACE = [
    event("nvjet_sm90_tst_64x8", 100, 10),
    event("_rms_norm", 111, 4),
    event("_decode", 112, 5),
    event("Memcpy DtoH (Device -> Pinned)", 147, 3, "gpu_memcpy"),
    event("cudaGraphLaunch", 90, 7, "cuda_runtime"),
    event("cuLaunchKernelEx", 98, 2, "cuda_driver"),
    event("cudaEventSynchronize", 101, 40, "cuda_runtime"),
    event("cudaGetDevice", 101, 40, "cuda_runtime"),
    event("aten::mm", 90, 60, "cpu_op"),
    {"ph": "i", "name": "a mark", "ts": 1},
]


def test_time_is_put_down_to_what_took_it() -> None:
    found = break_down(e for e in TRACE if e["ph"] == "X")
    assert (found.span_us, found.busy_us) == (50, 10 + 6 + 3)
    assert found.groups["matrix products"].us == 10 and found.groups["norms"].us == 4
    assert found.small_gaps.us == 1 and {name: gap.us for name, gap in found.gaps.items()} == {"Memcpy DtoH": 30}
    assert {name: (s.us, s.calls) for name, s in found.host.items()} == {
        "launching and copying": (9, 2),
        "waiting": (40, 1),
    }


@pytest.mark.parametrize("packed", [False, True])
def test_the_command_prints_tables_per_step(packed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps({"traceEvents": TRACE}).encode()
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    assert main([str(path), "--steps", "2", "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert "25.0 us per step, busy 38.0 %" in out and "matrix products" in out and "_rms_norm" not in out


def test_files_that_are_no_traces_are_named(tmp_path: Path) -> None:
    for content in (b"{}", b"no json", b"\x1f\x8bno gzip", b'{"traceEvents": 3}'):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(ConfigError, match="no Chrome trace"):
            read_trace(tmp_path / "x")
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "missing")
    assert report(break_down([]), 1, 5) == "the trace holds no device events"


@pytest.mark.parametrize(
    ("kernel", "group", "short"),
    [
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "matrix products", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(int)", "matrix products", "splitKreduce_kernel"),
        ("void at::native::(anonymous namespace)::indexSelectSmallIndex<long, int>(a)", "gathers and scatters",
         "indexSelectSmallIndex"),
        ("void flashinfer::PrefillWithKVCacheKernel<A<B>, 3>(C)", "prompt attention", "PrefillWithKVCacheKernel"),
        ("_cut_rows", "decode attention", "_cut_rows"),
        ("something", "other", "something"),
    ],
)  # fmt: skip
def test_kernels_are_known_by_name(kernel: str, group: str, short: str) -> None:
    assert (group_of(kernel), short_name(kernel)) == (group, short)

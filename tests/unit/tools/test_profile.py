"""The trace reader's sums, on traces small enough to add up by hand, and what it says about damaged ones."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from radixlm.kernels import triton as kernels
from radixlm.launch.cli import main as radixlm
from radixlm.tools.profile import OTHER, Event, break_down, break_down_host, group_of, main, short_name


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


HOST = [
    event("aten::to", 100, 50, "cpu_op"),
    event("aten::copy_", 110, 30, "cpu_op"),
    event("aten::to", 115, 10, "cpu_op"),
    event("aten::mm", 150, 40, "cpu_op"),
    event("aten::mm", 100, 60, "cpu_op") | {"tid": "another"},
    event("a part", 190, 10, "user_annotation"),
    event("a mark of the profiler", 0, 9999, "Trace"),
]


def events(trace: list[dict[str, Any]]) -> list[Event]:
    return [found for found in msgspec.convert(trace, list[Event]) if found.complete]


def test_time_is_put_down_to_what_took_it() -> None:
    found = break_down(events(TRACE))
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


def test_operators_have_their_own_time_and_that_of_their_callees() -> None:
    found = break_down_host(events(HOST))
    assert (found.span_us, found.threads) == (100, 2)
    assert {name: (one.us, one.total_us, one.calls) for name, one in found.operators.items()} == {
        "aten::to": (20 + 10, 50, 2),  # the inner one's time is in the outer one's
        "aten::copy_": (20, 30, 1),
        "aten::mm": (100, 100, 2),
        "a part": (10, 10, 1),
    }


def test_operators_that_overlap_take_no_more_than_there_is() -> None:
    half = [event("outer", 0, 10, "cpu_op"), event("late", 8, 10, "cpu_op"), event("same", 8, 10, "cpu_op")]
    found = break_down_host(events(half)).operators
    assert [found[name].us for name in ("outer", "late", "same")] == [8, 0, 10]


def test_a_trace_without_a_device_is_told_by_the_hosts_operators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": HOST}))
    assert main([str(path), "--top", "2", "--steps", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("no device events") and "50.0 us per step, on 2 threads" in lines[1]
    assert [line.split() for line in lines[-2:]] == [
        ["aten::mm", "50.0", "50.0", "1.0", "50.00", "100.0%"],
        ["aten::to", "15.0", "25.0", "1.0", "15.00", "30.0%"],
    ]


GOOD = gzip.compress(json.dumps({"traceEvents": TRACE}).encode())
DAMAGED = {
    "empty": (b"", "it is empty"),
    "text": (b"no json", "malformed"),
    "cut": (b'{"traceEvents": [', "truncated"),
    "binary": (bytes(range(128, 256)) * 9, "malformed"),
    "not UTF-8": (b'[{"name": "\xff\xfe"}]', "UTF-8"),
    "short gzip": (GOOD[:100], "end-of-stream"),
    "no gzip": (b"\x1f\x8b" + bytes(99), "compression method"),
    "broken gzip": (GOOD[:40] + b"\xff\xff\xff\xff" + GOOD[44:], "decompressing"),
    "no list of events": (b'{"traceEvents": 3}', "$.traceEvents"),
    "no events": (b"{}", "traceEvents"),
    "nothing in it": (b"[]", "neither device events nor operators"),
    "an event that is none": (b'{"traceEvents": [{}, 7]}', "$.traceEvents[1]"),
    "no start": (b'[{"ph": "X", "name": "a", "dur": 3}]', "`ts` and `dur` - at `$[0]`"),
    "no end": (b'[{"ph": "X", "name": "a", "ts": 3}]', "`ts` and `dur` - at `$[0]`"),
    "a start in words": (b'[{"ph": "X", "ts": "soon", "dur": 3}]', "$[0].ts"),
    "an end before the start": (b'[{"ph": "X", "ts": 3, "dur": -1}]', "$[0].dur"),
    "an end beyond all numbers": (b'[{"ph": "X", "ts": 3, "dur": 1.7e308}]', "$[0].dur"),
    "a device without time": (json.dumps([event("a", 5, 0)]).encode(), "take no time"),
    "a host without time": (json.dumps([event("a", 5, 0, "cpu_op")]).encode(), "take no time"),
    "deep": (b"[" * 100_000, "$[0]"),
    "deep within": (b'[{"args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]", "recursion"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_wrong_with_a_file_is_said_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, complaint = DAMAGED[name]
    path = tmp_path / "x"
    path.write_bytes(content)
    assert radixlm(["profile", str(path)]) == 1
    out, error = capsys.readouterr()
    assert error.startswith(f"error: {path}: ") and complaint in error and error.count("\n") == 1 and not out


def test_files_that_cannot_be_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, complaint in ((tmp_path / "missing", "No such file or directory"), (tmp_path, "Is a directory")):
        assert main([str(path)]) == 1
        assert capsys.readouterr().err == f"error: {path}: {complaint}\n"
    with pytest.raises(SystemExit) as wrong:
        main([str(tmp_path), "--steps", "0"])
    assert wrong.value.code == 2 and "--steps" in capsys.readouterr().err


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


def test_every_kernel_of_ours_belongs_to_a_group() -> None:
    sources = Path(kernels.__file__).parent.glob("*.py")
    launched = {name for source in sources for name in re.findall(r"^ +(_\w+)\[", source.read_text(), re.MULTILINE)}
    assert {"_attend_shared", "_gate_mul", "_decode"} < launched
    assert [name for name in launched if group_of(name) == OTHER] == []

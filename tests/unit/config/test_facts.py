"""Probing the host: cgroup limits of both versions, on made-up trees, and the real machine's sanity."""

from pathlib import Path

import pytest

from radixlm.config import facts as module
from radixlm.config.facts import CgroupLimits, GpuFacts, HardwareFacts, cgroup_limits, free_ram_bytes, probe_host

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def probe(tmp_path: Path, membership: str, files: dict[str, str]) -> CgroupLimits:
    (tmp_path / "self").write_text(membership)
    write(tmp_path / "fs", files)
    return cgroup_limits(tmp_path / "self", tmp_path / "fs")


def test_version_2_takes_the_tightest_ancestor(tmp_path: Path) -> None:
    files = {
        "cpu.max": "max 100000\n",
        "a/memory.max": f"{4 * GIB}\n",
        "a/memory.current": f"{3 * GIB}\n",
        "a/memory.stat": f"anon 5\ninactive_file {GIB}\n",
        "a/cpu.max": "150000 100000\n",
        "a/b/memory.max": "max\n",
        "a/b/memory.current": f"{GIB}\n",
        "a/b/cpu.max": "800000 100000\n",
    }
    assert probe(tmp_path, "0::/a/b\n", files) == CgroupLimits(4 * GIB, 2 * GIB, 2)


def test_version_1(tmp_path: Path) -> None:
    files = {
        "memory/x/memory.limit_in_bytes": f"{2 * GIB}\n",
        "memory/x/memory.usage_in_bytes": f"{GIB}\n",
        "memory/x/memory.stat": "total_inactive_file 0\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.usage_in_bytes": "100\n",
        "cpu/x/cpu.cfs_quota_us": "50000\n",
        "cpu/x/cpu.cfs_period_us": "100000\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
    }
    membership = "5:memory:/x\n2:cpu,cpuacct:/x\n0::/\n"
    assert probe(tmp_path, membership, files) == CgroupLimits(2 * GIB, GIB, 1)


def test_paths_that_a_container_does_not_see(tmp_path: Path) -> None:
    files = {"memory.max": f"{GIB}\n", "memory.current": "0\n"}
    assert probe(tmp_path, "0::/host/slice/../unseen\n", files) == CgroupLimits(GIB, GIB, None)
    assert cgroup_limits(tmp_path / "nowhere", tmp_path) == CgroupLimits()


def test_native_bfloat16() -> None:
    assert not HardwareFacts(1, 1, 1, frozenset({"avx512f", "avx2"})).cpu_bf16
    assert HardwareFacts(1, 1, 1, frozenset({"avx512_bf16"})).cpu_bf16
    assert HardwareFacts(1, 1, 1, frozenset({"amx_bf16"})).cpu_bf16


def test_which_gpus_have_bfloat16() -> None:
    assert not GpuFacts("T4", 1, 1, 40, (7, 5)).bf16 and GpuFacts("A100", 1, 1, 108, (8, 0)).bf16


def test_free_ram_is_what_the_control_group_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cgroup_limits", lambda: CgroupLimits(available_bytes=5))
    assert free_ram_bytes() == 5
    monkeypatch.setattr(module, "cgroup_limits", CgroupLimits)
    assert free_ram_bytes() > 5


def test_this_machine() -> None:
    facts = probe_host()
    assert facts.cores >= 1 and facts.gpu is None
    assert 0 < facts.available_bytes <= facts.memory_bytes
    assert probe_host().drawn_seed != facts.drawn_seed

"""KV sizing arithmetic, the running limit and the start-up report."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from radixlm.base.errors import CapacityError
from radixlm.config.capacity import (
    ELEMENT_BYTES,
    PoolSize,
    budget_report,
    chunk_graph_sizes,
    graph_sizes,
    kv_pool_tokens,
    most_step_tokens,
    settle,
)
from radixlm.config.groups import Config
from radixlm.config.resolve import Decision, Resolved, resolve
from tests.unit.config.machines import GIB, LAPTOP, MACHINES, MIB, QWEN3_8B, SERVER_CPU, SMOLLM2

SMOL_BYTES = 2 * 30 * 3 * 64 * 2  # of one token in bfloat16


def smol(**flags: Any) -> Resolved:
    return resolve(Config.from_flat({"model_path": "m", **flags}), SERVER_CPU, SMOLLM2)


def size(resolved: Resolved, weights: int = 270 * MIB, available: int = 10 * GIB) -> PoolSize:
    return kv_pool_tokens(resolved, SMOLLM2, weights, available, 2)


def test_arithmetic_of_an_asked_share() -> None:
    pool = size(smol(mem_fraction_static=0.85))
    pages = (int(10 * GIB * 0.85) - 270 * MIB) // (16 * SMOL_BYTES) - 1
    assert (pool.pages, pool.tokens, pool.bytes) == (pages, pages * 16, (pages + 1) * 16 * SMOL_BYTES)
    assert pool.warning is None and "8.50 GiB of 10.00 GiB" in pool.reason


def test_default_share_is_capped() -> None:
    assert size(smol(), available=100 * GIB).tokens == 32 * 8192
    assert size(smol(context_length=1000), available=100 * GIB).tokens == 32_000
    assert size(smol(), available=4 * GIB).tokens < 32 * 8192


def test_default_share_grows_for_a_large_model() -> None:
    """Half of the memory would not hold the weights; nine tenths hold them and one request of full length."""
    resolved = resolve(Config.from_flat({"model_path": "m"}), SERVER_CPU, QWEN3_8B)
    pool = kv_pool_tokens(resolved, QWEN3_8B, 16 * GIB, 25 * GIB, 2)
    assert pool.tokens == 40_960 and "beyond the default share" in pool.reason
    assert kv_pool_tokens(resolved, QWEN3_8B, 16 * GIB, 20 * GIB, 2).tokens < 40_960
    with pytest.raises(CapacityError):
        kv_pool_tokens(resolved, QWEN3_8B, 16 * GIB, 17 * GIB, 2)


def on(machine: str, **flags: Any) -> tuple[Resolved, PoolSize]:
    """Qwen3-8B with 15.26 GiB of weights."""
    gpu = MACHINES[machine].gpu
    assert gpu is not None
    resolved = resolve(Config.from_flat({"model_path": "m", **flags}), MACHINES[machine], QWEN3_8B)
    return resolved, kv_pool_tokens(resolved, QWEN3_8B, int(15.26 * GIB), gpu.available_bytes, 2)


def test_default_share_on_cuda_grows_where_it_leaves_no_chunk_and_answer() -> None:
    """SGLang's reserve leaves an L4 some 700 tokens; what the largest step needs is measured besides."""
    resolved, pool = on("l4")
    assert 32_000 < pool.tokens < 33_000 and "19.72 GiB of 21.91 GiB" in pool.reason
    reason = "the default of 0.701 would hold less than a prompt chunk and an answer beside the weights"
    assert pool.share == Decision("mem_fraction_static", 0.9, reason)
    settled = settle(resolved, pool)
    assert settled.config.cache.mem_fraction_static == 0.9
    assert f"memory share: 0.9 ({reason})" in budget_report(settled, pool, 0)
    for context_length in (600, 4096, 40_960):  # a shorter context never makes the pool smaller
        assert on("l4", context_length=context_length)[1].tokens == pool.tokens
    assert on("l4", chunked_prefill_size=-1)[1].tokens == pool.tokens
    room = kv_pool_tokens(resolved, QWEN3_8B, int(15.26 * GIB), int(21.91 * GIB), 2, room_bytes=3 * GIB)
    assert room.bytes <= 3 * GIB and "all that is left" in room.reason


@pytest.mark.parametrize(
    ("machine", "flags", "tokens"),
    [
        ("l4", {"mem_fraction_static": 0.701}, 710),
        ("l4", {"chunked_prefill_size": 512}, 22_087),
        ("4090", {}, 11_574),
        ("a100-40", {}, 127_953),
        ("gb10", {}, 640_322),
        ("h200", {}, 812_300),
    ],
)
def test_a_share_that_was_asked_for_or_is_of_use_stands(machine: str, flags: dict[str, Any], tokens: int) -> None:
    resolved, pool = on(machine, **flags)
    assert (pool.tokens, pool.share) == (tokens, None) and "beyond" not in pool.reason
    share = resolved.config.cache.mem_fraction_static
    assert settle(resolved, pool).config.cache.mem_fraction_static == share


def test_element_size_halves_the_pool() -> None:
    resolved = smol(mem_fraction_static=0.5)
    half = kv_pool_tokens(resolved, SMOLLM2, 0, 10 * GIB, ELEMENT_BYTES["float32"])
    full = kv_pool_tokens(resolved, SMOLLM2, 0, 10 * GIB, ELEMENT_BYTES["bfloat16"])
    assert abs(full.tokens - 2 * half.tokens) <= 3 * 16


@settings(max_examples=200, deadline=None)
@given(
    page=st.integers(1, 512),
    fraction=st.floats(0.05, 0.95),
    weights=st.integers(0, 8 * GIB),
    available=st.integers(MIB, 32 * GIB),
)
def test_pool_never_exceeds_its_share_or_says_what_helps(
    page: int, fraction: float, weights: int, available: int
) -> None:
    resolved = smol(page_size=page, mem_fraction_static=fraction)
    try:
        pool = size(resolved, weights, available)
    except CapacityError as error:
        assert "\n" not in str(error)
        suggestion = re.search(r"set --mem-fraction-static (\S+) or more", str(error))
        assume(suggestion is not None)
        assert suggestion is not None
        better = float(suggestion[1])
        assert fraction < better <= 0.9
        assert size(smol(page_size=page, mem_fraction_static=better), weights, available).tokens >= 256
    else:
        assert pool.tokens == pool.pages * page >= 256
        assert pool.bytes == (pool.pages + 1) * page * SMOL_BYTES
        assert weights + pool.bytes <= available * fraction
        assert weights + pool.bytes + page * SMOL_BYTES > available * fraction - 1


def test_when_no_fraction_helps() -> None:
    with pytest.raises(CapacityError, match=r"free 6\.\d\d GiB more, or take a smaller model"):
        size(smol(), weights=15 * GIB, available=10 * GIB)


def test_forced_size() -> None:
    pool = size(smol(max_total_tokens=1000))
    assert (pool.tokens, pool.pages, pool.warning) == (992, 62, None)
    allowed = size(smol(mem_fraction_static=0.5), available=GIB).tokens
    asked = size(smol(mem_fraction_static=0.5, max_total_tokens="20k"), available=GIB)
    assert asked.tokens == 20_000 > allowed
    assert asked.warning == f"--max-total-tokens 20000 is more than the {allowed} that memory allows"
    with pytest.raises(CapacityError, match=r"10000000 takes 214\.58 GiB.* at most 34288 tokens fit"):
        size(smol(max_total_tokens="10M"), available=GIB)
    with pytest.raises(CapacityError, match="--max-total-tokens 15 is less than one page of 16 tokens"):
        size(smol(max_total_tokens=15))


@pytest.mark.parametrize(
    ("machine", "asked", "tokens", "page", "limit"),
    [
        ("server", None, 262_144, 16, 64),
        ("server", 7, 262_144, 16, 7),
        ("server", None, 160, 16, 10),
        ("server", None, 8, 1, 4),
        ("h100", None, 40_960, 1, 2048),
        ("h100", None, 400_000, 1, 4096),
        ("h100", None, 245_760, 1, 3072),
        ("h100", None, 1000, 1, 500),
        ("h100", 256, 400_000, 1, 256),
    ],
)
def test_running_limit(machine: str, asked: int | None, tokens: int, page: int, limit: int) -> None:
    flags = {"model_path": "m", "page_size": page, "max_running_requests": asked}
    resolved = resolve(Config.from_flat(flags), MACHINES[machine], QWEN3_8B)
    settled = settle(resolved, PoolSize(tokens, tokens // page, 0, ""))
    assert settled.config.schedule.max_running_requests == limit
    assert (settled == resolved) == (resolved.config.schedule.max_running_requests == limit)


def test_a_pool_that_holds_no_request() -> None:
    with pytest.raises(CapacityError, match="holds no request"):
        settle(smol(page_size=1), PoolSize(1, 1, 0, ""))


def report(resolved: Resolved, **sizes: int) -> list[str]:
    pool = size(resolved, **sizes)
    return budget_report(settle(resolved, pool), pool, 270 * MIB)


def test_report() -> None:
    lines = report(smol(page_size=8), available=100 * GIB)
    text = "\n".join(lines)
    assert "device: cpu (no CUDA device was found)" in lines
    assert "page size: 8 (as asked)" in lines
    assert "weights: 0.26 GiB" in lines
    assert "KV pool: 262,144 tokens in 32,768 pages of 8, 5.63 GiB bfloat16" in text
    assert "context length: 8,192 tokens; 32 such requests fit into the KV pool" in lines
    assert "warning" not in text
    assert lines[-1] == (
        "max_total_num_tokens=262144, chunked_prefill_size=512, max_prefill_tokens=16384, max_running_requests=64, "
        "context_len=8192"
    )


def test_report_warns_when_the_context_exceeds_the_pool() -> None:
    warnings = [line for line in report(smol(context_length=4096, max_total_tokens=512)) if "warning" in line]
    assert len(warnings) == 1
    assert "context length of 4096 tokens exceeds the KV pool of 512 tokens" in warnings[0]
    forced = report(smol(mem_fraction_static=0.5, max_total_tokens="20k"), available=GIB)
    assert [line for line in forced if line.startswith("warning: --max-total-tokens 20000 is more than")]


def test_measured_free_memory_is_reported() -> None:
    resolved = smol()
    pool = size(resolved)
    lines = budget_report(settle(resolved, pool), pool, 0, free_bytes=3 * GIB)
    assert lines[-1].endswith("available_gpu_mem=3.00 GB")


def test_cuda_reports_its_choices() -> None:
    facts = MACHINES["h200"]
    assert facts.gpu is not None
    resolved = resolve(Config.from_flat({"model_path": "m"}), facts, QWEN3_8B)
    pool = kv_pool_tokens(resolved, QWEN3_8B, 16 * GIB, facts.gpu.available_bytes, 2)
    lines = budget_report(settle(resolved, pool), pool, 16 * GIB, facts.gpu.available_bytes)
    assert "run-ahead: 1 (the host plans while the GPU computes)" in lines
    assert any(line.startswith("running requests: 4096 (") for line in lines)


def test_laptop_starts_the_demo() -> None:
    facts = replace(LAPTOP, available_bytes=2 * GIB)
    resolved = resolve(Config.from_flat({"model_path": "demo"}), facts, SMOLLM2)
    assert kv_pool_tokens(resolved, SMOLLM2, 540 * MIB, facts.available_bytes, 4).tokens > 8192


@pytest.mark.parametrize(
    ("flags", "most_rows", "sizes"),
    [
        ({"cuda_graph_max_bs_decode": 40}, 4096, (1, 2, 4, 8, 12, 16, 24, 32, 40)),
        ({"cuda_graph_max_bs_decode": 40}, 10, (1, 2, 4, 8, 10)),
        ({"cuda_graph_max_bs_decode": 3}, 4096, (1, 2, 3)),
        ({}, 1, (1,)),
        ({"cuda_graph_bs_decode": [9, 3, 9]}, 4096, (3, 9)),
        ({"cuda_graph_bs_decode": [900, 3]}, 100, (3, 100)),
        ({"disable_cuda_graph_padding": True}, 5, (1, 2, 3, 4, 5)),
        ({"disable_cuda_graph": True}, 4096, ()),
        ({"device": "cpu"}, 4096, ()),
    ],
)
def test_graph_sizes(flags: dict[str, Any], most_rows: int, sizes: tuple[int, ...]) -> None:
    resolved = resolve(Config.from_flat({"model_path": "m", **flags}), MACHINES["h200"], QWEN3_8B)
    assert graph_sizes(resolved, most_rows) == sizes


@pytest.mark.parametrize(
    ("flags", "sizes"),
    [
        ({"cuda_graph_max_bs_prefill": 100}, (16, 32, 64, 96, 100)),
        ({"cuda_graph_max_bs_prefill": 16}, (16,)),
        ({"cuda_graph_bs_prefill": [900, 3, 900]}, (3, 900)),
        ({"chunked_prefill_size": 64, "max_running_requests": 48}, (16, 32, 64)),
        ({"disable_prefill_cuda_graph": True}, ()),
    ],
)
def test_chunk_graph_sizes(flags: dict[str, Any], sizes: tuple[int, ...]) -> None:
    resolved = resolve(Config.from_flat({"model_path": "m", **flags}), MACHINES["h200"], QWEN3_8B)
    assert chunk_graph_sizes(resolved) == sizes


@given(st.integers(512, 16_384))
def test_chunk_graph_sizes_reach_all_tokens_and_waste_little(most_tokens: int) -> None:
    flags = {"model_path": "m", "cuda_graph_max_bs_prefill": most_tokens}
    sizes = chunk_graph_sizes(resolve(Config.from_flat(flags), MACHINES["h200"], QWEN3_8B))
    assert sizes[-1] == min(most_tokens, 8192) and len(sizes) <= 90
    assert all(high - low <= max(32, low // 16) for low, high in pairwise(sizes))


@given(st.integers(1, 4096))
def test_graph_sizes_reach_all_rows_and_waste_little(most_rows: int) -> None:
    resolved = resolve(Config.from_flat({"model_path": "m"}), MACHINES["h200"], QWEN3_8B)
    sizes = graph_sizes(resolved, most_rows)
    assert sizes[-1] == most_rows and len(sizes) <= 60
    for low, high in pairwise(sizes):
        assert high - low <= max(8, low / 8) and high > low


def test_the_pool_takes_no_more_than_the_measured_room() -> None:
    resolved = resolve(Config.from_flat({"model_path": "m"}), MACHINES["h200"], QWEN3_8B)
    free = kv_pool_tokens(resolved, QWEN3_8B, 16 * GIB, 140 * GIB, 2)
    assert kv_pool_tokens(resolved, QWEN3_8B, 16 * GIB, 140 * GIB, 2, 200 * GIB) == free
    tight = kv_pool_tokens(resolved, QWEN3_8B, 16 * GIB, 140 * GIB, 2, 50 * GIB)
    assert 50 * GIB - 147_456 < tight.bytes <= 50 * GIB and "all that is left beside weights" in tight.reason
    for room in (0, -GIB, 10 * MIB):
        with pytest.raises(CapacityError, match="smaller --chunked-prefill-size"):
            kv_pool_tokens(resolved, QWEN3_8B, 16 * GIB, 140 * GIB, 2, room)
    forced = resolve(Config.from_flat({"model_path": "m", "max_total_tokens": 1000}), MACHINES["h200"], QWEN3_8B)
    pool = kv_pool_tokens(forced, QWEN3_8B, 16 * GIB, 140 * GIB, 2, 10 * MIB)
    assert pool.tokens == 1000 and pool.warning is not None and "70 that memory allows" in pool.warning


@pytest.mark.parametrize(
    ("flags", "tokens"),
    [
        ({"chunked_prefill_size": 8192, "max_running_requests": 16}, 8192),
        ({"chunked_prefill_size": 2048}, 4096 + 512),
        ({"chunked_prefill_size": -1, "max_running_requests": 16}, 40_976),
    ],
)
def test_the_largest_step(flags: dict[str, Any], tokens: int) -> None:
    resolved = resolve(Config.from_flat({"model_path": "m", **flags}), MACHINES["h200"], QWEN3_8B)
    assert most_step_tokens(resolved) == tokens

"""/v1/loads: how busy the server is, for routers; from the scheduler's last pulse, without asking it."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from radixlm.base.errors import RequestError
from radixlm.protocol.messages import SchedulerReady, SchedulerStats
from radixlm.server.exchange import Exchange
from radixlm.server.route import Row

_LABELS = ("timestamp", "dp_rank")
_GIB = float(1 << 30)
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def _core(ready: SchedulerReady, stats: SchedulerStats) -> dict[str, Any]:
    total = stats.max_total_num_tokens or ready.max_total_num_tokens
    usage = stats.kv_used_tokens / total if total else 0.0
    return {
        "num_running_reqs": stats.num_running_reqs,
        "num_waiting_reqs": stats.num_queue_reqs,
        "num_used_tokens": stats.kv_used_tokens,
        "num_total_tokens": total,
        "max_total_num_tokens": ready.max_total_num_tokens,
        "max_running_requests": ready.max_running_requests,
        "token_usage": round(usage, 4),
        "gen_throughput": round(stats.gen_throughput, 2),
        "cache_hit_rate": round(stats.cache_hit_rate, 4),
        "total_prefill_uncached_tokens": stats.prefill_compute_tokens_total,
        "utilization": round(max(usage, stats.num_running_reqs / max(ready.max_running_requests, 1)), 4),
    }


def _memory(ready: SchedulerReady, stats: SchedulerStats) -> dict[str, Any]:
    def gib(name: str) -> float:
        size = ready.facts.get(name)
        return round(size / _GIB, 3) if isinstance(size, int | float) else 0.0

    return {
        "weight_gb": gib("weights_bytes"),
        "kv_cache_gb": gib("kv_cache_bytes"),
        "graph_gb": ready.facts.get("decode_cuda_graph_memory_gb", 0.0),
        "token_capacity": ready.max_total_num_tokens,
    }


def _queues(ready: SchedulerReady, stats: SchedulerStats) -> dict[str, Any]:
    return {"waiting": stats.num_queue_reqs, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0}


def _nothing(ready: SchedulerReady, stats: SchedulerStats) -> None:
    """A section about what this server does not do."""


Section = Callable[[SchedulerReady, SchedulerStats], dict[str, Any] | None]

SECTIONS: Mapping[str, tuple[str, Section]] = {
    "memory": ("memory", _memory),
    "spec": ("speculative", _nothing),
    "lora": ("lora", _nothing),
    "disagg": ("disaggregation", lambda ready, stats: {"mode": "null"}),
    "queues": ("queues", _queues),
}


def _wanted(include: str | None) -> set[str]:
    """The sections of `include`, a list with commas; RequestError names an unknown one."""
    names = {name.strip() for name in (include or "all").split(",") if name.strip()}
    known = {"core", "all", *SECTIONS}
    for name in sorted(names - known):
        raise RequestError(f"include has the unknown section {name!r}; there are {', '.join(sorted(known))}", "include")
    return {"core", *SECTIONS} if "all" in names or not names else names


def loads(ready: SchedulerReady, stats: SchedulerStats, wanted: set[str]) -> dict[str, Any]:
    """What is to be said of the one scheduler there is."""
    load: dict[str, Any] = {"timestamp": stats.time, "dp_rank": 0}
    if "core" in wanted:
        load |= _core(ready, stats)
    return load | {key: make(ready, stats) for name, (key, make) in SECTIONS.items() if name in wanted}


def prometheus(load: Mapping[str, Any]) -> str:
    """The numbers of one load as gauges."""
    rank = load["dp_rank"]
    numbers: dict[str, Any] = {}
    for key, value in load.items():
        numbers |= {f"{key}_{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
    gauges = {key: value for key, value in numbers.items() if isinstance(value, int | float) and key not in _LABELS}
    return "".join(
        f'# TYPE sglang_{key} gauge\nsglang_{key}{{dp_rank="{rank}"}} {value}\n' for key, value in gauges.items()
    )


def _is_this_rank(text: str | None) -> bool:
    """Whether `dp_rank` names the one scheduler there is, or none in particular."""
    if text is None:
        return True
    try:
        return int(text) == 0
    except ValueError:
        raise RequestError("dp_rank must be an integer", "dp_rank") from None


async def handle_loads(exchange: Exchange) -> None:
    began = time.perf_counter()
    await _answer(exchange)
    exchange.services.metrics.loads(time.perf_counter() - began)


async def _answer(exchange: Exchange) -> None:
    manager = exchange.services.manager
    ready, stats = manager.ready, manager.stats
    wanted = _wanted(exchange.query("include"))
    kind = exchange.query("format") or "json"
    if kind not in ("json", "prometheus"):
        raise RequestError("format must be json or prometheus", "format")
    known = _is_this_rank(exchange.query("dp_rank")) and ready is not None and stats is not None
    found = [loads(ready, stats, wanted)] if known and ready is not None and stats is not None else []
    if kind == "prometheus":
        await exchange.answer("".join(map(prometheus, found)).encode(), PROMETHEUS)
        return
    device = exchange.services.launch.get("device")
    head = {
        "timestamp": datetime.now(UTC).isoformat(),
        "version": exchange.services.version,
        "accelerator": device,
        "num_accelerators": 0 if device == "cpu" else 1,
    }
    await exchange.json({**head, "loads": found})


ROWS = (Row("/v1/loads", ("GET",), handle_loads, "user"),)

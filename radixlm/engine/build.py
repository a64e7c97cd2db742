"""Builds what one scheduler process runs: model, KV pool, attention, scheduler, runner. Knows no socket."""

import atexit
import dataclasses
import gc
import time
from dataclasses import dataclass

import psutil
import torch

from radixlm.attention.base import AttentionBackend, AttentionFacts
from radixlm.attention.table import Maker, choose, choose_for_encoder
from radixlm.base import log
from radixlm.cache.manager import CacheManager
from radixlm.cache.pools.mha import MHAPool
from radixlm.config.capacity import (
    ELEMENT_BYTES,
    GIB,
    PoolSize,
    budget_report,
    chunk_graph_sizes,
    graph_sizes,
    kv_pool_tokens,
    settle,
)
from radixlm.config.card import ModelCard
from radixlm.config.facts import GpuFacts, HardwareFacts, free_ram_bytes, probe_host
from radixlm.config.groups import Config
from radixlm.config.kv_events import kv_events
from radixlm.config.resolve import Resolved, known, resolve
from radixlm.engine.cores import Team
from radixlm.engine.grammars import GrammarRoom, grammar_room
from radixlm.engine.kv_events import KvEventPublisher
from radixlm.engine.plugins import check_plugins
from radixlm.engine.trial import Room, measure_room, null_step, run_null_step
from radixlm.loader.source import ModelSource
from radixlm.loader.tokenizer import Tokenizer, load_tokenizer
from radixlm.loader.weights import LoadedModel, load_model
from radixlm.protocol.messages import SchedulerReady
from radixlm.runner.capture import CaptureReport
from radixlm.runner.memory import free_device_bytes
from radixlm.runner.rows import Rows
from radixlm.runner.runner import Runner
from radixlm.runner.sampler import LOGITS_ROWS
from radixlm.runner.staging import Staging
from radixlm.scheduler.limits import SchedulerLimits
from radixlm.scheduler.scheduler import Scheduler

logger = log.get(__name__)


@dataclass(frozen=True)
class Engine:
    """A scheduler and a runner that fit each other, ready for the loop. `team` computes, on a CPU."""

    scheduler: Scheduler
    runner: Runner
    run_ahead: int
    ready: SchedulerReady
    feed: KvEventPublisher | None
    grammars: GrammarRoom
    team: Team | None = None

    def misfit(self, batch: int, prompt_tokens: int, output_tokens: int) -> str | None:
        """Why so many requests, each of so many tokens, cannot run all at once; None when they can."""
        ready, total = self.ready, prompt_tokens + output_tokens
        if batch > ready.max_running_requests:
            return f"more than the {ready.max_running_requests} requests that may run (--max-running-requests)"
        if total > ready.capacity_tokens:
            return f"{total} tokens are more than the {ready.capacity_tokens} that one request may have"
        if batch * total > ready.max_total_num_tokens:
            return f"{batch * total} tokens do not fit into the KV pool of {ready.max_total_num_tokens}"
        return None


def probe(device: str) -> HardwareFacts:
    """The host's facts, and those of the first CUDA device unless `device` is "cpu"."""
    facts = probe_host()
    if device == "cpu" or not torch.cuda.is_available():
        return facts
    properties = torch.cuda.get_device_properties(0)
    gpu = GpuFacts(
        properties.name,
        properties.total_memory,
        free_device_bytes(),
        properties.multi_processor_count,
        (properties.major, properties.minor),
        bool(properties.is_integrated),
    )
    return dataclasses.replace(facts, gpu=gpu)


def build(config: Config, source: ModelSource, card: ModelCard) -> Engine:
    """Load the model and everything around it. RadixError, in one line, when that cannot be done."""
    facts = probe(config.device.device)
    resolved = resolve(config, facts, card)
    check_plugins(resolved.config)  # these two before any weight is read
    _attention(resolved, card)
    device = torch.device(resolved.config.device.device)
    team = Team.muster(facts.cores) if device.type == "cpu" else None
    available_bytes = facts.gpu.available_bytes if resolved.on_cuda and facts.gpu is not None else facts.available_bytes
    dtype = getattr(torch, resolved.config.model.dtype)
    loaded = load_model(
        source, card, dtype, device, config.model.load_format, config.device.random_seed or 0,
        config.device.enable_deterministic_inference,
    )  # fmt: skip
    logger.info("weights loaded in %.1f s", loaded.seconds)
    tokenizer = load_tokenizer(source, config.model.tokenizer_path) if card.pooling is None else None
    engine = assemble(resolved, card, loaded, available_bytes, tokenizer)
    engine.ready.facts["scheduler_e2e_s"] = round(time.time() - psutil.Process().create_time(), 3)
    gc.collect()
    gc.freeze()  # what stands now stays: a full collection in the midst of a step would look at all of it in vain
    atexit.register(gc.unfreeze)  # or bindings complain, at the interpreter's end, of what they take for leaks
    return dataclasses.replace(engine, team=team)


def assemble(
    resolved: Resolved, card: ModelCard, loaded: LoadedModel, available_bytes: int, tokenizer: Tokenizer | None
) -> Engine:
    """Put pool, attention, rows, runner and scheduler around a loaded model; `available_bytes` was free before it."""
    device = torch.device(resolved.config.device.device)
    kv_dtype = getattr(torch, resolved.kv_dtype)
    attention, why = _attention(resolved, card)
    pages_per_slot = -(-resolved.context_len // resolved.page_size) + 1
    room = None
    if device.type == "cuda":
        room = measure_room(resolved, card, loaded.model, attention, kv_dtype, pages_per_slot)
    pool_size = kv_pool_tokens(
        resolved,
        card,
        loaded.weights_bytes,
        available_bytes,
        ELEMENT_BYTES[resolved.kv_dtype],
        None if room is None else room.bytes,
    )
    resolved = settle(resolved, pool_size)
    page_size = resolved.page_size
    allocating = time.monotonic()
    pool = MHAPool(pool_size.pages, page_size, card.kv_layers, card.num_kv_heads, card.head_dim, kv_dtype, device)
    kv_cache_allocation_s = time.monotonic() - allocating
    backend = attention(pool)
    most_running = known(resolved.config.schedule.max_running_requests)
    rows = Rows(most_running, pages_per_slot, card.vocab_size, Staging(device))
    runner = Runner(loaded.model, backend, rows)
    captured = _capture(runner, resolved, most_running)
    limits = SchedulerLimits(
        capacity_tokens=min(resolved.context_len, pool_size.tokens),
        context_len=resolved.context_len,
        max_running_requests=most_running,
        vocab_size=card.vocab_size,
        eos_token_ids=card.eos_token_ids,
    )
    events = kv_events(resolved.config.cache.kv_events_config)
    feed = None if events is None else KvEventPublisher(events, page_size)
    cache = CacheManager(
        pool_size.pages,
        page_size,
        radix=not resolved.config.cache.disable_radix_cache,
        eviction=resolved.config.cache.radix_eviction_policy,
        eviction_options=resolved.config.cache.radix_eviction_policy_config,
        feed=feed,
    )
    token_bytes = tokenizer.token_bytes(card.vocab_size) if tokenizer is not None else None
    scheduler = Scheduler(resolved.config.schedule, cache, limits, token_bytes)
    warm_up_s = 0.0 if resolved.config.server.skip_server_warmup else _warm_up(runner, card, backend, resolved)
    report = budget_report(resolved, pool_size, loaded.weights_bytes, _free_bytes(device))
    attending = f"attention: {backend.name} ({why})"
    report[-1:-1] = [attending, *_captured_lines(captured, resolved, backend, room)]
    ready = _ready(resolved, pool_size, limits, report, loaded, backend.name, warm_up_s, captured.decode)
    ready.facts["kv_cache_allocation_s"] = round(kv_cache_allocation_s, 3)
    ready.facts["startup_available_bytes"] = _free_bytes(device)
    return Engine(scheduler, runner, resolved.run_ahead, ready, feed, grammar_room(resolved.config, card, tokenizer))


@dataclass(frozen=True)
class _Captured:
    """What is replayed in place of being launched call by call. `recorded_tokens`: of native CPU steps, 0 for none."""

    decode: CaptureReport | None
    chunks: CaptureReport | None
    recorded_tokens: int


def _capture(runner: Runner, resolved: Resolved, most_running: int) -> _Captured:
    sizes, chunk_sizes = graph_sizes(resolved, most_running), chunk_graph_sizes(resolved)
    decode = runner.capture(sizes) if sizes and runner.capturable else None
    chunks = runner.capture_chunks(chunk_sizes) if chunk_sizes and runner.chunks_capturable else None
    device = resolved.config.device
    recorded_tokens = runner.record() if device.device == "cpu" and not device.disable_cuda_graph else 0
    return _Captured(decode, chunks, recorded_tokens)


def _captured_lines(captured: _Captured, resolved: Resolved, backend: AttentionBackend, room: Room | None) -> list[str]:
    """What the start-up report says of it; `room` on a GPU only."""
    lines = []
    if captured.recorded_tokens:
        lines.append(f"recorded steps: up to {captured.recorded_tokens} tokens run as one native call")
    if room is not None:
        measured = f"page tables and largest step: {room.step_bytes / GIB:.2f} GiB, graphs: "
        lines.append(f"{measured}{room.graphs_bytes / GIB:.2f} GiB, as measured before the pool was sized")
        lines.append(f"decode graphs: {_graphs_line(resolved, backend, captured.decode)}")
        lines.append(f"prefill graphs: {_chunk_graphs_line(resolved, backend, captured.chunks)}")
    return lines


def _graphs_line(resolved: Resolved, backend: AttentionBackend, graphs: CaptureReport | None) -> str:
    if graphs is not None:
        sizes = graphs.sizes
        return f"{len(sizes)} sizes up to {sizes[-1]} rows, {graphs.seconds:.1f} s, {graphs.bytes / GIB:.2f} GiB"
    decision = resolved.decision("cuda_graph_backend_decode")
    if not backend.capturable:
        return f"none ({backend.name} cannot be captured)"
    return f"none ({decision.reason if decision is not None else 'as asked'})"


def _chunk_graphs_line(resolved: Resolved, backend: AttentionBackend, graphs: CaptureReport | None) -> str:
    if graphs is not None:
        sizes = graphs.sizes
        return f"{len(sizes)} sizes up to {sizes[-1]} tokens, {graphs.seconds:.1f} s, {graphs.bytes / GIB:.2f} GiB"
    decision = resolved.decision("cuda_graph_backend_prefill")
    if decision is not None and decision.value == "breakable":
        return f"none (not with {backend.name} and this model)"
    return f"none ({decision.reason if decision is not None else 'as asked'})"


def _attention(resolved: Resolved, card: ModelCard) -> tuple[Maker, str]:
    """What makes the chosen backend around a pool, and why it was chosen."""
    facts = AttentionFacts(
        device=resolved.config.device.device,
        dtype=getattr(torch, resolved.config.model.dtype),
        page_size=resolved.page_size,
        num_heads=card.num_heads,
        num_kv_heads=card.num_kv_heads,
        head_dim=card.head_dim,
        sliding_window=card.sliding_window,
        some_full=bool(card.full_layers),
        soft_cap=card.attention_soft_cap,
        invariant=resolved.config.device.enable_deterministic_inference,
        kv_dtype=getattr(torch, resolved.kv_dtype),
    )
    return (choose if card.encoder is None else choose_for_encoder)(facts, resolved.config.device)


def _warm_up(runner: Runner, card: ModelCard, backend: AttentionBackend, resolved: Resolved) -> float:
    """Each kind of step once through the whole path, so that no request pays for the first time; seconds taken."""
    began = time.monotonic()
    run_null_step(runner, null_step([1], 0, pools=card.pooling is not None))
    if card.pooling is None:
        run_null_step(runner, null_step([1], 1))
        rows = min(LOGITS_ROWS, known(resolved.config.schedule.max_running_requests))
        if rows > 1 and backend.eager_keys:  # on the null page they all see the same keys
            start = min(4 * backend.eager_keys // rows, resolved.context_len - 1)
            run_null_step(runner, null_step([1] * rows, rows, start=start))
    return time.monotonic() - began


def _free_bytes(device: torch.device) -> int:
    return free_device_bytes() if device.type == "cuda" else free_ram_bytes()


def _ready(
    resolved: Resolved,
    pool_size: PoolSize,
    limits: SchedulerLimits,
    report: list[str],
    loaded: LoadedModel,
    attention: str,
    warm_up_s: float,
    graphs: CaptureReport | None,
) -> SchedulerReady:
    decided: dict[str, str | int | float | bool | None] = {d.name: d.value for d in resolved.decisions}
    facts: dict[str, str | int | float | bool | None] = {
        **decided,
        "attention_backend": attention,
        "weights_bytes": loaded.weights_bytes,
        "kv_cache_bytes": pool_size.bytes,
        "num_pages": pool_size.pages,
        "load_weight_s": round(loaded.seconds, 3),
        "warm_up_s": round(warm_up_s, 3),
    }
    if graphs is not None:
        facts["decode_cuda_graph_max_bs"] = graphs.sizes[-1]
        facts["decode_cuda_graph_memory_gb"] = round(graphs.bytes / GIB, 3)
        facts["decode_cuda_graph_s"] = round(graphs.seconds, 3)
    return SchedulerReady(
        capacity_tokens=limits.capacity_tokens,
        max_total_num_tokens=pool_size.tokens,
        max_running_requests=limits.max_running_requests,
        page_size=resolved.page_size,
        report=report,
        facts=facts,
    )

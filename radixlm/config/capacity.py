"""How large the KV pool is and how many requests run at once, as pure arithmetic, and the start-up report of both.

Called when the weights' size is known. Measures and allocates nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from radixlm.base.errors import CapacityError
from radixlm.config.card import ModelCard
from radixlm.config.resolve import Decision, Resolved, known

GIB = 2**30
SHORT_REQUEST_TOKENS = 256  # a server that cannot hold even this is not started
ANSWER_TOKENS = 1024  # that the pool of a GPU holds beside a prompt chunk, or its default share grows
# Of available memory: the most that is suggested, and that a default share grows to so that a large model is of use.
HIGHEST_FRACTION = 0.9
ELEMENT_BYTES: Mapping[str, int] = MappingProxyType({"float32": 4, "float16": 2, "bfloat16": 2})

# Requests per device: SGLang 0.5.22's estimate when nothing is asked for on CUDA.
_RUNNING_PER_CONTEXT = 512
_RUNNING_RANGE = (2048, 4096)


@dataclass(frozen=True)
class PoolSize:
    """The KV pool: `pages` usable pages of `tokens` in all, and `bytes` that they and the null page take.

    `share`: what the default memory share grew to, if it did.
    """

    tokens: int
    pages: int
    bytes: int
    reason: str
    warning: str | None = None
    share: Decision | None = None


def kv_pool_tokens(
    resolved: Resolved,
    card: ModelCard,
    weights_bytes: int,
    available_bytes: int,
    kv_element_bytes: int,
    room_bytes: int | None = None,
) -> PoolSize:
    """The KV pool that fits beside the weights, in whole pages.

    `available_bytes` is what was free before the weights were loaded: device memory on CUDA, RAM on the CPU. Weights
    and pool together take `mem_fraction_static` of it. A default share grows where it would hold less than a
    request of full length on the CPU, a prompt chunk and an answer on CUDA; on the CPU the pool is capped too.
    `room_bytes` is what was measured to be left beside weights, the largest step and graphs: the pool is never larger,
    whatever the share. `--max-total-tokens` replaces the result, with a warning when memory does not allow it.
    CapacityError, with what would help, when not even a short request fits.
    """
    page_size = resolved.page_size
    if not card.kv_layers:
        return _no_pool(resolved, weights_bytes, available_bytes)
    page_bytes = page_size * card.kv_bytes_per_token(kv_element_bytes)
    short_pages = math.ceil(min(SHORT_REQUEST_TOKENS, resolved.context_len) / page_size)
    share_bytes = int(available_bytes * (resolved.config.cache.mem_fraction_static or 0.0))
    reason = f"{_gib(share_bytes)} of {_gib(available_bytes)} for weights and pool"
    cap_tokens = resolved.pool_cap_tokens
    share_bytes, share = _grown_share(resolved, weights_bytes, page_bytes, share_bytes, available_bytes)
    if share is not None:
        reason = f"{_gib(share_bytes)} of {_gib(available_bytes)} for weights and pool, beyond the default share"

    pages = (share_bytes - weights_bytes) // page_bytes - 1  # one page is the null page
    if room_bytes is not None and room_bytes // page_bytes - 1 < pages:
        pages = room_bytes // page_bytes - 1
        reason = f"all that is left beside weights, the largest step and graphs; {reason} were allowed"
        if pages < short_pages and resolved.config.cache.max_total_tokens is None:
            raise CapacityError(
                f"not enough memory: beside weights and the largest step {_gib(max(room_bytes, 0))} are left for the "
                "KV pool; set a smaller --chunked-prefill-size or --cuda-graph-max-bs-decode, or take a smaller model"
            )
    forced_tokens = resolved.config.cache.max_total_tokens
    if forced_tokens is not None:
        return _forced_pool(forced_tokens, page_size, page_bytes, max(pages, 0), available_bytes - weights_bytes)
    if pages < short_pages:
        need_bytes = weights_bytes + (short_pages + 1) * page_bytes
        raise CapacityError(_too_small(weights_bytes, need_bytes, share_bytes, available_bytes))
    if cap_tokens is not None and cap_tokens < pages * page_size:
        pages = max(math.ceil(cap_tokens / page_size), short_pages)
        reason = f"enough for {cap_tokens:,} tokens; set --mem-fraction-static or --max-total-tokens for more"
    return PoolSize(pages * page_size, pages, (pages + 1) * page_bytes, reason, share=share)


def _grown_share(
    resolved: Resolved, weights_bytes: int, page_bytes: int, share_bytes: int, available_bytes: int
) -> tuple[int, Decision | None]:
    """`share_bytes`, or what a share that nobody asked for grows to, with the decision about it."""
    default = resolved.decision("mem_fraction_static")
    if default is None:
        return share_bytes, None

    def beside_pool(tokens: int) -> int:
        return weights_bytes + (math.ceil(tokens / resolved.page_size) + 1) * page_bytes

    highest_bytes = int(available_bytes * HIGHEST_FRACTION)
    if resolved.on_cuda:  # where the largest step is measured: no more is kept for it than it needs
        enough_bytes, what = beside_pool(resolved.prompt_step_tokens + ANSWER_TOKENS), "a prompt chunk and an answer"
    else:
        enough_bytes, what = beside_pool(resolved.context_len), "a request of full length"
        highest_bytes = min(highest_bytes, enough_bytes)
    if share_bytes >= enough_bytes or share_bytes >= highest_bytes:
        return share_bytes, None
    reason = f"the default of {default.value} would hold less than {what} beside the weights"
    return highest_bytes, Decision("mem_fraction_static", round(highest_bytes / available_bytes, 3), reason)


def _no_pool(resolved: Resolved, weights_bytes: int, available_bytes: int) -> PoolSize:
    """Pages without memory, enough for all that may run at once: nothing but their number bounds a step."""
    if weights_bytes > available_bytes:
        raise CapacityError(f"not enough memory: {_gib(weights_bytes)} of weights, {_gib(available_bytes)} available")
    pages = (most_running(resolved) + 2) * math.ceil(resolved.context_len / resolved.page_size)
    return PoolSize(pages * resolved.page_size, pages, 0, "an encoder keeps no keys and values")


def _forced_pool(forced_tokens: int, page_size: int, page_bytes: int, fitting_pages: int, left_bytes: int) -> PoolSize:
    """`fitting_pages` are what the memory share allows, `left_bytes` is all the memory there is beside the weights."""
    pages = forced_tokens // page_size
    if pages < 1:
        raise CapacityError(f"--max-total-tokens {forced_tokens} is less than one page of {page_size} tokens")
    if (pages + 1) * page_bytes > left_bytes:
        raise CapacityError(
            f"not enough memory: --max-total-tokens {forced_tokens} takes {_gib((pages + 1) * page_bytes)}, and "
            f"{_gib(max(left_bytes, 0))} are left beside the weights; at most "
            f"{max(left_bytes // page_bytes - 1, 0) * page_size} tokens fit"
        )
    warning = None
    if pages > fitting_pages:
        warning = f"--max-total-tokens {forced_tokens} is more than the {fitting_pages * page_size} that memory allows"
    return PoolSize(pages * page_size, pages, (pages + 1) * page_bytes, "--max-total-tokens", warning)


def _too_small(weights_bytes: int, need_bytes: int, share_bytes: int, available_bytes: int) -> str:
    fraction = math.ceil(need_bytes / max(available_bytes, 1) * 100) / 100
    if fraction <= HIGHEST_FRACTION:
        way_out = f"set --mem-fraction-static {fraction:g} or more"
    else:
        missing_bytes = need_bytes / HIGHEST_FRACTION - available_bytes
        way_out = f"free {_gib(missing_bytes)} more, or take a smaller model or data type"
    return (
        f"not enough memory: {_gib(available_bytes)} are available, {_gib(share_bytes)} of them may be used; "
        f"the weights take {_gib(weights_bytes)} and with the smallest useful KV pool {_gib(need_bytes)}; {way_out}"
    )


def most_step_tokens(resolved: Resolved) -> int:
    """The most tokens that one step computes: the scheduler's budget, and what it leaves chunks beside many decodes."""
    schedule = resolved.config.schedule
    chunk_tokens = known(schedule.chunked_prefill_size)
    if chunk_tokens <= 0:  # a prompt is computed whole, whatever else runs
        return most_running(resolved) + max(schedule.max_prefill_tokens, resolved.context_len)
    return max(chunk_tokens, most_running(resolved) + chunk_tokens // 4)


def most_running(resolved: Resolved) -> int:
    """The most requests that can run at once, as far as it is known before the pool is."""
    asked = resolved.config.schedule.max_running_requests
    return _RUNNING_RANGE[1] if asked is None else asked


def settle(resolved: Resolved, pool: PoolSize) -> Resolved:
    """`resolved` with what the pool's size decides: how many requests run at once, and a share that grew."""
    for decision in (pool.share, _running_limit(resolved, pool)):
        if decision is not None:
            resolved = resolved.take(decision)
    return resolved


def _running_limit(resolved: Resolved, pool: PoolSize) -> Decision | None:
    asked = resolved.config.schedule.max_running_requests
    low, high = _RUNNING_RANGE
    wish = asked if asked is not None else pool.tokens * _RUNNING_PER_CONTEXT // resolved.context_len
    if asked is None:
        wish = min(max(wish, low), high)
    limit = min(wish, pool.tokens // 2, pool.pages)
    if limit < 1:
        raise CapacityError(f"a KV pool of {pool.tokens} tokens holds no request")
    if limit == asked:
        return None
    reason = f"the KV pool has {pool.tokens:,} tokens" if limit < wish else "follows from KV pool and context length"
    return Decision("max_running_requests", limit, reason)


# ---- CUDA graphs ---------------------------------------------------------------------------------------------------


def graph_sizes(resolved: Resolved, most_rows: int) -> tuple[int, ...]:
    """The decode steps to capture, in rows, ascending; the last holds as many of `most_rows` as are to be captured.

    Between two sizes lie at most an eighth of the rows, so that a step padded to the next one wastes no more than that.
    """
    if not resolved.decode_graphs:
        return ()
    device = resolved.config.device
    largest = min(known(device.cuda_graph_max_bs_decode), most_rows)
    if device.cuda_graph_bs_decode is not None:
        sizes = {min(size, most_rows) for size in device.cuda_graph_bs_decode}
    elif device.disable_cuda_graph_padding:
        sizes = set(range(1, largest + 1))
    else:
        sizes = {size for size in (1, 2, 4, largest) if size <= largest}
        size = 8
        while size < largest:
            sizes.add(size)
            size += max(1 << size.bit_length() - 4, 4 if size < 16 else 8)
    return tuple(sorted(sizes))


def chunk_graph_sizes(resolved: Resolved) -> tuple[int, ...]:
    """The steps with prompt tokens to capture, in tokens, ascending; none larger than a step can be.

    Two sizes lie 32 tokens or at most a sixteenth apart: beyond 512 tokens the device is busy with what is padded.
    """
    if not resolved.prefill_graphs:
        return ()
    device = resolved.config.device
    largest = min(known(device.cuda_graph_max_bs_prefill), most_step_tokens(resolved))
    if device.cuda_graph_bs_prefill is not None:
        return tuple(sorted({min(size, largest) for size in device.cuda_graph_bs_prefill}))
    sizes, size = {largest}, 16
    while size < largest:
        sizes.add(size)
        size += 16 if size < 32 else max(32, 1 << size.bit_length() - 5)
    return tuple(sorted(sizes))


# ---- the start-up report ------------------------------------------------------------------------------------------

_REPORTED: Mapping[str, str] = MappingProxyType(
    {
        "device": "device",
        "dtype": "data type",
        "mem_fraction_static": "memory share",
        "page_size": "page size",
        "chunked_prefill_size": "prompt chunk",
        "max_running_requests": "running requests",
        "run_ahead": "run-ahead",
    }
)


def budget_report(resolved: Resolved, pool: PoolSize, weights_bytes: int, free_bytes: int | None = None) -> list[str]:
    """The start-up lines: the choices that matter with their reasons, the memory budget, warnings, SGLang's line.

    `resolved` is settled. `free_bytes` is what is left after all allocations; not told when it was not measured.
    """
    context_len, schedule = resolved.context_len, resolved.config.schedule
    size = f"{pool.tokens:,} tokens in {pool.pages:,} pages of {resolved.page_size}, {_gib(pool.bytes)}"
    room = f"; {pool.tokens // context_len:,} such requests fit into the KV pool" if pool.bytes else ""
    pool_line = f"KV pool: {f'{size} {resolved.kv_dtype}' if pool.bytes else 'none'} ({pool.reason})"
    lines = [
        *(_choice_line(resolved, name, label) for name, label in _REPORTED.items()),
        f"weights: {_gib(weights_bytes)}",
        pool_line,
        f"context length: {context_len:,} tokens{room}",
    ]
    if pool.warning is not None:
        lines.append(f"warning: {pool.warning}")
    if context_len > pool.tokens:
        lines.append(
            f"warning: the context length of {context_len} tokens exceeds the KV pool of {pool.tokens} tokens; "
            "longer prompts are refused, and answers end where the pool does"
        )
    numbers = {
        "max_total_num_tokens": pool.tokens,
        "chunked_prefill_size": known(schedule.chunked_prefill_size),
        "max_prefill_tokens": schedule.max_prefill_tokens,
        "max_running_requests": known(schedule.max_running_requests),
        "context_len": context_len,
    }
    measured = "" if free_bytes is None else f", available_gpu_mem={free_bytes / GIB:.2f} GB"
    lines.append(", ".join(f"{name}={value}" for name, value in numbers.items()) + measured)
    return lines


def _choice_line(resolved: Resolved, name: str, label: str) -> str:
    decision = resolved.decision(name)
    if decision is not None:
        return f"{label}: {decision.value} ({decision.reason})"
    return f"{label}: {resolved.config.flat()[name]} (as asked)"


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f} GiB"

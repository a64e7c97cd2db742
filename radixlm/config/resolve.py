"""Resolution: unset flags become numbers by a fold of named rules, and each decision is kept with its reason.

Pure: a configuration, hardware facts and a model card in, a `Resolved` out. Opens nothing and measures nothing; what
needs the size of the loaded weights is in config/capacity.py.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from radixlm.base.errors import ConfigError
from radixlm.config.attention_names import DEVICES, ENCODER_BACKENDS, WHOLE
from radixlm.config.card import ModelCard
from radixlm.config.facts import GpuFacts, HardwareFacts
from radixlm.config.flags import option_of
from radixlm.config.groups import Config, ScheduleConfig, fields_by_name

Value = str | int | float | bool | None

MIB = 2**20
CPU_CHUNK_TOKENS = 512
ENCODER_CPU_STEP_TOKENS = 2048
ENCODER_PAGE_TOKENS = 1024  # pages of no memory: few of them, but no larger than a page may be
CPU_PAGE_TOKENS = 16
CPU_RUNNING_REQUESTS = 64
CPU_MEMORY_FRACTION = 0.5
CPU_POOL_REQUESTS = 32  # an unasked-for pool on the CPU holds at most this many requests of full length
CPU_POOL_TOKENS = 4 * 2**20  # and at most this many tokens

# Device memory in MiB below which a chunk of so many tokens is taken, and for how many rows SGLang reserves graph
# memory: the values that SGLang 0.5.22 uses.
_CUDA_SIZES = ((20_480, 2048, 8), (35_840, 4096, 48), (61_440, 4096, 32), (163_840, 8192, 256))
_CUDA_LARGEST = (16_384, 512)
_LARGE_DEVICE_MIB = 61_440
# Device memory in MiB below which decode steps of more rows than this are not captured unasked.
_GRAPH_ROWS = ((20_480, 128), (61_440, 1024))
GRAPH_ROWS_WITHOUT_PADDING = 256
MOST_GRAPHS_WITHOUT_PADDING = 1024  # a few minutes of capturing
MOST_GRAPH_ROWS = 4096
# With more arithmetic than this in a layer, a device is busy for longer than its launches take a host.
GRAPH_LAYER_FLOPS = 10**12
GRAPH_TILE_TOKENS = 128
_SMALLEST_FRACTION = 0.05


@dataclass(frozen=True)
class Decision:
    """One value that was decided: a flag's flat name or a field of `Resolved`, the value, and why."""

    name: str
    value: Value
    reason: str


@dataclass(frozen=True)
class Resolved:
    """A configuration with nothing left open but what needs the loaded weights, and the values that are no flags.

    Attributes:
        context_len: the longest sequence in tokens, prompt and output together.
        run_ahead: how many steps may be in flight while the next is planned.
        kv_dtype: precision of the KV pool, by torch's name.
        pool_cap_tokens: the KV pool is not made larger than this unasked; None when there is no such cap.
        decisions: everything that was decided, in order.
    """

    config: Config
    context_len: int
    run_ahead: int = 0
    kv_dtype: str = ""
    pool_cap_tokens: int | None = None
    decisions: tuple[Decision, ...] = ()

    def take(self, decision: Decision) -> "Resolved":
        """This with one more decision in force; ConfigError when another flag was set that it leaves without effect."""
        decisions = (*self.decisions, decision)
        if decision.name in fields_by_name():
            try:
                config = self.config.replace(**{decision.name: decision.value})
            except ConfigError as error:  # what was asked for does not go with what has to be
                raise ConfigError(f"{error}: {decision.reason}") from None
            return dataclasses.replace(self, config=config, decisions=decisions)
        derived: dict[str, Any] = {decision.name: decision.value}
        return dataclasses.replace(self, decisions=decisions, **derived)

    def decision(self, name: str) -> Decision | None:
        """The last decision about `name`; None when the user's value stands."""
        return next((item for item in reversed(self.decisions) if item.name == name), None)

    @property
    def on_cuda(self) -> bool:
        return self.config.device.device == "cuda"

    @property
    def decode_graphs(self) -> bool:
        """Whether decode steps are to be captured."""
        return self.config.device.cuda_graph_backend_decode == "full" and self.on_cuda

    @property
    def prefill_graphs(self) -> bool:
        """Whether steps with prompt tokens are to be captured in pieces."""
        return self.config.device.cuda_graph_backend_prefill == "breakable" and self.on_cuda

    @property
    def page_size(self) -> int:
        """Tokens per KV page."""
        return known(self.config.cache.page_size)

    @property
    def prompt_step_tokens(self) -> int:
        """The most prompt tokens of one step."""
        chunk_tokens = known(self.config.schedule.chunked_prefill_size)
        return chunk_tokens if chunk_tokens > 0 else self.config.schedule.max_prefill_tokens


def known(value: int | None) -> int:
    """A number that resolution has filled in."""
    if value is None:
        raise ConfigError("the configuration has not been resolved")
    return value


def resolve(config: Config, facts: HardwareFacts, card: ModelCard) -> Resolved:
    """Apply every rule in order; later rules see what earlier ones decided. ConfigError when a wish cannot be met."""
    state = Resolved(config, context_len=card.context_len)
    for rule in RULES:
        for decision in rule(state, facts, card):
            state = state.take(decision)
    return state


# ---- rules: each yields its decisions, and nothing when the user's value stands -----------------------------------


def _determinism(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    if state.config.device.enable_deterministic_inference and card.encoder is not None:
        raise ConfigError("--enable-deterministic-inference: an encoder's sums depend on the prompts of its step")
    yield from ()


def _device(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    asked, gpu = state.config.device.device, facts.gpu
    if asked == "cuda" and gpu is None:
        raise ConfigError("--device cuda: no CUDA device was found")
    if gpu is not None and asked == "auto":
        yield Decision("device", "cuda", f"{gpu.name} was found{_whose_memory(gpu)}")
    elif gpu is not None and asked == "cuda" and gpu.integrated:
        yield Decision("device", "cuda", f"as asked{_whose_memory(gpu)}")
    elif asked == "auto":
        yield Decision("device", "cpu", "no CUDA device was found")


def _whose_memory(gpu: GpuFacts) -> str:
    return "; its memory is shared with the CPU" if gpu.integrated else ""


def _attention(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    device = state.config.device
    both = device.attention_backend
    apart = {name: getattr(device, name) for name in ("decode_attention_backend", "prefill_attention_backend")}
    for name, asked in {"attention_backend": both, **apart}.items():
        if DEVICES.get(asked, device.device) != device.device:
            raise ConfigError(f"{option_of(name)} {asked} runs on {DEVICES[asked]}, not on {device.device}")
    if card.encoder is None:
        if both in ENCODER_BACKENDS:
            raise ConfigError(f"--attention-backend {both} is for encoders")
        yield from _one_for_both(apart, both)
        return
    for name, asked in apart.items():
        if asked is not None:
            raise ConfigError(f"{option_of(name)}: an encoder has one kind of step; see --attention-backend")
    if both not in (None, "auto", *ENCODER_BACKENDS):
        raise ConfigError(f"--attention-backend {both} is not for encoders; theirs: {', '.join(ENCODER_BACKENDS)}")
    yield from ()


def _one_for_both(apart: Mapping[str, str | None], both: str | None) -> Iterator[Decision]:
    """Where a backend that does all of a step is asked for one kind of row, the others are its, too."""
    asked = {name: word or both or "auto" for name, word in apart.items()}
    whole = next((name for name, word in asked.items() if word in WHOLE), None)
    for name, word in asked.items():
        if whole is None or word == asked[whole]:
            continue
        if word != "auto":
            first, second = (
                f"{option_of(one if apart[one] else 'attention_backend')} {own}" for one, own in asked.items()
            )
            raise ConfigError(f"{first} and {second} cannot work together: {asked[whole]} does all of a step")
        yield Decision(name, asked[whole], f"{asked[whole]} does all of a step")


def _names(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    config = state.config
    if config.model.tokenizer_path is None:
        yield Decision("tokenizer_path", config.model.model_path, "with the model")
    if config.server.served_model_name is None:
        # A path may hold a colon, a served name may not.
        yield Decision("served_model_name", config.model.model_path.replace(":", "_"), "the model path")
    if config.server.log_level_http is None:
        yield Decision("log_level_http", config.server.log_level, "that of --log-level")
    if config.device.random_seed is None:
        yield Decision("random_seed", facts.drawn_seed, "drawn at start")


def _dtype(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    asked = state.config.model.dtype
    plain = {"half": "float16", "float": "float32"}.get(asked)
    if asked == "bfloat16" and state.on_cuda and facts.gpu is not None and not facts.gpu.bf16:
        raise ConfigError(f"--dtype bfloat16: {facts.gpu.name} has no bfloat16; set --dtype float16")
    if plain is not None:
        yield Decision("dtype", plain, f"--dtype {asked}")
    elif asked == "auto" and state.on_cuda and facts.gpu is not None:
        yield _cuda_dtype(facts.gpu, card)
    elif asked == "auto":
        yield _cpu_dtype(facts, card)


def _cuda_dtype(gpu: GpuFacts, card: ModelCard) -> Decision:
    if card.dtype != "bfloat16":
        return Decision("dtype", "float16", f"the checkpoint is {card.dtype}")
    if not gpu.bf16:
        return Decision("dtype", "float16", f"{gpu.name} has no bfloat16")
    return Decision("dtype", "bfloat16", "the checkpoint is bfloat16")


def _cpu_dtype(facts: HardwareFacts, card: ModelCard) -> Decision:
    if card.dtype == "float32":
        return Decision("dtype", "float32", "the checkpoint is float32")
    if facts.cpu_bf16:
        return Decision("dtype", "bfloat16", f"the CPU multiplies bfloat16 natively; the checkpoint is {card.dtype}")
    return Decision("dtype", "float32", "the CPU has no native bfloat16")


def _context(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    asked = state.config.model.context_length
    if asked is None:
        yield Decision("context_len", card.context_len, "the model's own")
    elif asked > card.context_len:
        raise ConfigError(
            f"--context-length {asked} is more than the {card.context_len} tokens that the model was made for "
            "(--json-model-override-args changes the model's own limit)"
        )
    else:
        yield Decision("context_len", asked, "--context-length")


def _pooling(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    """A model that pools generates nothing, and an encoder keeps no keys and values: it reads a prompt in one step."""
    pooling, config = card.pooling, state.config
    if pooling is None:
        return
    if state.on_cuda:
        yield Decision("cuda_graph_backend_decode", "disabled", "nothing is decoded")
    if card.encoder is None:
        if pooling.carries:
            reason = f"{'+'.join(pooling.modes)} pooling needs every token of a prompt"
            yield Decision("disable_radix_cache", True, reason)
        return
    if config.cache.max_total_tokens is not None:
        raise ConfigError("--max-total-tokens: an encoder has no KV pool")
    reason = "an encoder reads a prompt in one step and keeps nothing of it"
    yield Decision("disable_radix_cache", True, reason)
    yield Decision("chunked_prefill_size", -1, reason)
    yield Decision("page_size", min(state.context_len, ENCODER_PAGE_TOKENS), reason)
    if not state.on_cuda and config.schedule.max_prefill_tokens == ScheduleConfig.max_prefill_tokens:
        yield Decision("max_prefill_tokens", ENCODER_CPU_STEP_TOKENS, "keeps a CPU step short")


def _page_size(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    if state.config.cache.page_size is not None:
        return
    if state.on_cuda:
        yield Decision("page_size", 1, "exact prefix reuse costs nothing on CUDA")
    else:
        yield Decision("page_size", CPU_PAGE_TOKENS, "the CPU reads the cache in blocks")


def _chunk(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    asked = state.config.schedule.chunked_prefill_size
    page = state.page_size
    if asked is None and state.on_cuda and facts.gpu is not None:
        memory_mib = facts.gpu.memory_bytes // MIB
        size = _cuda_sizes(facts.gpu)[0]
        yield Decision("chunked_prefill_size", _whole_pages(size, page), f"{memory_mib:,} MiB of device memory")
    elif asked is None:
        reason = "keeps a CPU step short, so that running requests do not wait long"
        yield Decision("chunked_prefill_size", _whole_pages(CPU_CHUNK_TOKENS, page), reason)
    elif asked <= 0 and asked != -1:
        yield Decision("chunked_prefill_size", -1, f"--chunked-prefill-size {asked} turns chunking off")
    elif asked > 0 and asked % page:
        yield Decision(
            "chunked_prefill_size", _whole_pages(asked, page), f"{asked} is no multiple of the page size {page}"
        )


def _cuda_sizes(gpu: GpuFacts) -> tuple[int, int]:
    """(tokens of a chunk, rows for which graph memory is reserved), by device memory."""
    memory_mib = gpu.memory_bytes // MIB
    return next(((chunk, rows) for below, chunk, rows in _CUDA_SIZES if memory_mib < below), _CUDA_LARGEST)


def _whole_pages(tokens: int, page_size: int) -> int:
    return max(tokens // page_size, 1) * page_size


def _prefill_cap(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    schedule = state.config.schedule
    if known(schedule.chunked_prefill_size) <= 0 and schedule.max_prefill_tokens < state.context_len:
        reason = "without chunks a step must hold the longest prompt"
        yield Decision("max_prefill_tokens", state.context_len, reason)


def _running(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    if state.config.schedule.max_running_requests is None and not state.on_cuda:
        reason = "more requests at once only make each slower on a CPU"
        yield Decision("max_running_requests", CPU_RUNNING_REQUESTS, reason)


def _run_ahead(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    if state.config.schedule.disable_overlap_schedule:
        yield Decision("run_ahead", 0, "--disable-overlap-schedule")
    elif state.on_cuda:
        yield Decision("run_ahead", 1, "the host plans while the GPU computes")
    else:
        yield Decision("run_ahead", 0, "host and model share the same cores")


def _graphs(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    device = state.config.device
    backend = device.cuda_graph_backend_decode
    if not state.on_cuda or facts.gpu is None:
        return
    if backend is None:
        flags = {
            "--disable-cuda-graph": device.disable_cuda_graph,
            "--disable-decode-cuda-graph": device.disable_decode_cuda_graph,
        }
        off = next((flag for flag, given in flags.items() if given), None)
        backend = "full" if off is None else "disabled"
        yield Decision("cuda_graph_backend_decode", backend, off or "a replayed step costs the host one launch")
    asked = device.cuda_graph_max_bs_decode
    if backend == "full" and device.disable_cuda_graph_padding and asked is not None:
        _refuse_many_graphs(asked, state.config.schedule.max_running_requests)
    if backend == "full" and device.cuda_graph_bs_decode is not None:
        yield Decision("cuda_graph_max_bs_decode", max(device.cuda_graph_bs_decode), "--cuda-graph-bs-decode")
    elif backend == "full" and asked is None:
        yield _most_graph_rows(facts.gpu, device.disable_cuda_graph_padding)


def _refuse_many_graphs(rows: int, most_running: int | None) -> None:
    graphs = rows if most_running is None else min(rows, most_running)
    if graphs > MOST_GRAPHS_WITHOUT_PADDING:
        raise ConfigError(
            f"--disable-cuda-graph-padding with --cuda-graph-max-bs-decode {rows} captures {graphs:,} graphs, one for "
            f"each size; set --cuda-graph-max-bs-decode {MOST_GRAPHS_WITHOUT_PADDING} or less, or name the sizes: "
            "--cuda-graph-bs-decode"
        )


def _most_graph_rows(gpu: GpuFacts, every_size: bool) -> Decision:
    memory_mib = gpu.memory_bytes // MIB
    rows = next((rows for below, rows in _GRAPH_ROWS if memory_mib < below), MOST_GRAPH_ROWS)
    if every_size and rows > GRAPH_ROWS_WITHOUT_PADDING:
        return Decision("cuda_graph_max_bs_decode", GRAPH_ROWS_WITHOUT_PADDING, "every size is captured")
    return Decision("cuda_graph_max_bs_decode", rows, f"{memory_mib:,} MiB of device memory")


def _prefill_graphs(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    device = state.config.device
    backend = device.cuda_graph_backend_prefill
    if not state.on_cuda:
        return
    if backend is None:
        flags = {
            "--disable-cuda-graph": device.disable_cuda_graph,
            "--disable-prefill-cuda-graph": device.disable_prefill_cuda_graph,
        }
        off = next((flag for flag, given in flags.items() if given), None)
        if off is None and card.pooling is not None:
            off = "the model reads prompts only, each of them once"
        backend = "breakable" if off is None else "disabled"
        yield Decision("cuda_graph_backend_prefill", backend, off or "a replayed layer costs the host few launches")
    if backend == "breakable" and device.cuda_graph_bs_prefill is not None:
        yield Decision("cuda_graph_max_bs_prefill", max(device.cuda_graph_bs_prefill), "--cuda-graph-bs-prefill")
    elif backend == "breakable" and device.cuda_graph_max_bs_prefill is None:
        yield _most_graph_tokens(state, card)


def _most_graph_tokens(state: Resolved, card: ModelCard) -> Decision:
    step_tokens = state.prompt_step_tokens
    tokens = max(GRAPH_LAYER_FLOPS // (2 * card.layer_weights) // GRAPH_TILE_TOKENS, 1) * GRAPH_TILE_TOKENS
    if tokens < step_tokens:
        return Decision(
            "cuda_graph_max_bs_prefill", tokens, "larger steps keep the device busy while they are launched"
        )
    return Decision("cuda_graph_max_bs_prefill", step_tokens, "the largest step")


def _memory(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    if state.config.cache.mem_fraction_static is not None:
        return
    if state.on_cuda and facts.gpu is not None:
        yield _cuda_fraction(state, facts.gpu)
        return
    cap = min(CPU_POOL_REQUESTS * state.context_len, CPU_POOL_TOKENS)
    yield Decision("mem_fraction_static", CPU_MEMORY_FRACTION, "half of the free RAM is left to other programs")
    yield Decision(
        "pool_cap_tokens", cap, f"{CPU_POOL_REQUESTS} requests of full length, or {CPU_POOL_TOKENS:,} tokens"
    )


def _cuda_fraction(state: Resolved, gpu: GpuFacts) -> Decision:
    """SGLang 0.5.22's formula for one GPU: what is left after activations, a reserve and decode graphs, in MiB."""
    step_tokens = max(state.prompt_step_tokens, 2048)
    memory_mib = gpu.memory_bytes / MIB
    reserved_mib = 512 + 1.5 * step_tokens + 1024 / 8
    if state.decode_graphs:
        reserved_mib += 2 * _cuda_sizes(gpu)[1]
    if memory_mib > _LARGE_DEVICE_MIB:
        reserved_mib = max(reserved_mib, 10_240)
    fraction = max(round((memory_mib - reserved_mib) / memory_mib, 3), _SMALLEST_FRACTION)
    return Decision(
        "mem_fraction_static", fraction, f"{reserved_mib:,.0f} of {memory_mib:,.0f} MiB are kept for activations"
    )


_SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def _kv_dtype(state: Resolved, facts: HardwareFacts, card: ModelCard) -> Iterator[Decision]:
    asked = state.config.cache.kv_cache_dtype
    if asked == "auto":
        yield Decision("kv_dtype", state.config.model.dtype, "that of the computation")
    else:
        yield Decision("kv_dtype", _SHORT_DTYPES.get(asked, asked), f"--kv-cache-dtype {asked}")


Rule = Callable[[Resolved, HardwareFacts, ModelCard], Iterator[Decision]]

RULES: tuple[Rule, ...] = (
    _determinism,
    _device,
    _attention,
    _names,
    _dtype,
    _context,
    _pooling,
    _page_size,
    _chunk,
    _prefill_cap,
    _running,
    _run_ahead,
    _graphs,
    _prefill_graphs,
    _memory,
    _kv_dtype,
)

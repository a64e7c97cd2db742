"""How much of a model's traffic a machine holds: the server's own arithmetic, on a machine that need not be there.

Pure: configuration, facts and a card in, numbers out. What the server measures as it starts (activations of the
largest step, decode graphs) is not known here; where that is less than the share, the pool is smaller.
"""

from dataclasses import dataclass

from radixlm.base.errors import ModelError
from radixlm.config.capacity import (
    ELEMENT_BYTES,
    GIB,
    PoolSize,
    budget_report,
    kv_pool_tokens,
    most_step_tokens,
    settle,
)
from radixlm.config.card import ModelCard
from radixlm.config.facts import HardwareFacts
from radixlm.config.groups import Config
from radixlm.config.resolve import Resolved, known, resolve
from radixlm.engine.plugins import check_plugins

FEW_USERS = 4
WORTH_IT = 0.1  # of the pool must be won for a larger share to be advised
CPU_SHARE, CUDA_SHARE = 0.8, 0.92  # where nothing else needs the memory; the server measures its largest step besides
SPARE_RESERVE = 4.0  # times what activations need, before a reserve is called too large


@dataclass(frozen=True)
class Sizing:
    """What fits. `available_bytes` is what was free before anything was loaded."""

    resolved: Resolved
    card: ModelCard
    weights_bytes: int
    kv_bytes_per_token: int
    pool: PoolSize
    available_bytes: int

    @property
    def running(self) -> int:
        """How many requests may run at once."""
        return known(self.resolved.config.schedule.max_running_requests)

    def users(self, request_tokens: int) -> int:
        """How many requests of so many tokens, prompt and output together, run at once; 0 beyond the context length."""
        if request_tokens > self.resolved.context_len:
            return 0
        return min(self.pool.pages // -(-request_tokens // self.resolved.page_size), self.running)

    @property
    def activation_bytes(self) -> int:
        """About what the widest layer of the largest step needs: hidden states, one feed-forward, queries and keys."""
        card = self.card
        heads = (card.num_heads + 2 * card.num_kv_heads) * card.head_dim
        per_token = 6 * card.hidden_size + 3 * card.intermediate_size + 2 * heads
        return most_step_tokens(self.resolved) * per_token * ELEMENT_BYTES[self.resolved.config.model.dtype]

    def report(self) -> list[str]:
        """The lines that the server would write at its start."""
        return budget_report(self.resolved, self.pool, self.weights_bytes)


def size(config: Config, facts: HardwareFacts, card: ModelCard) -> Sizing:
    """Size `card` for a machine.

    CapacityError, with what would help, when the model does not fit; ModelError when its weights cannot be counted;
    ConfigError for flags that the server would refuse.
    """
    if card.num_parameters <= 0:
        raise ModelError(f"{config.model.model_path}: how many weights it has cannot be told from its configuration")
    resolved = resolve(config, facts, card)
    check_plugins(resolved.config)
    element_bytes = ELEMENT_BYTES[resolved.kv_dtype]
    weights_bytes = card.num_parameters * ELEMENT_BYTES[resolved.config.model.dtype]
    gpu = facts.gpu if resolved.on_cuda else None
    available_bytes = facts.available_bytes if gpu is None else gpu.available_bytes
    pool = kv_pool_tokens(resolved, card, weights_bytes, available_bytes, element_bytes)
    settled = settle(resolved, pool)
    return Sizing(settled, card, weights_bytes, card.kv_bytes_per_token(element_bytes), pool, available_bytes)


@dataclass(frozen=True)
class Advice:
    """Flags worth setting, as they are written, each with its reason; and what fits with all of them."""

    flags: list[tuple[str, str]]
    then: Sizing


def advise(sizing: Sizing, asked: Config, facts: HardwareFacts, request_tokens: int) -> Advice:
    """What to set for requests of `request_tokens`. What was asked for is left alone."""
    found: list[tuple[str, str]] = []
    share = _better_share(sizing) if asked.cache.mem_fraction_static is None else None
    if share is not None:
        found.append((f"--mem-fraction-static {share[0]:g}", share[1]))
        asked = asked.replace(mem_fraction_static=share[0])
        sizing = size(asked, facts, sizing.card)
    context = sizing.resolved.context_len
    few_tokens = sizing.pool.tokens // FEW_USERS
    if asked.model.context_length is None and context > few_tokens:
        best = max(min(few_tokens, context), min(request_tokens, sizing.pool.tokens, context))
        each_gib = context * sizing.kv_bytes_per_token / GIB
        reason = f"one request of the model's {context:,} tokens takes {each_gib:.1f} GiB of KV cache, "
        reason += f"and the whole pool has {sizing.pool.bytes / GIB:.1f} GiB"
        found.append((f"--context-length {best}", reason))
        asked = asked.replace(context_length=best)
        sizing = size(asked, facts, sizing.card)
    users = sizing.users(request_tokens)
    if asked.schedule.max_running_requests is None and 0 < users < sizing.running:
        each_tokens = sizing.pool.tokens // sizing.running
        reason = (
            f"{sizing.running:,} at once assume {each_tokens} tokens each; of {request_tokens} tokens {users} fit, "
        )
        found.append((f"--max-running-requests {users}", reason + "and more only push each other out of memory"))
        sizing = size(asked.replace(max_running_requests=users), facts, sizing.card)
    return Advice(found, sizing)


def _better_share(sizing: Sizing) -> tuple[float, str] | None:
    """A memory share that suits the model better than the default, and why."""
    share = sizing.resolved.config.cache.mem_fraction_static or 0.0
    if not sizing.resolved.on_cuda:
        cap = sizing.resolved.pool_cap_tokens
        if (cap is not None and sizing.pool.tokens >= cap) or share >= CPU_SHARE:
            return None
        return CPU_SHARE, f"a share of {share:g} assumes that other programs need the rest of the RAM"
    reserved_bytes = (1 - share) * sizing.available_bytes
    won_bytes = (CUDA_SHARE - share) * sizing.available_bytes
    if reserved_bytes < SPARE_RESERVE * sizing.activation_bytes or won_bytes < WORTH_IT * sizing.pool.bytes:
        return None
    kept = f"the default keeps {reserved_bytes / GIB:.1f} GiB for activations, as for a far wider model"
    needed = f"the largest step of this one takes about {sizing.activation_bytes / GIB:.1f} GiB"
    return CUDA_SHARE, f"{kept}; {needed} (the server measures it)"

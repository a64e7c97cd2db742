"""The facts about model and pool that bound what the scheduler may accept."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulerLimits:
    """`capacity_tokens` is the longest prompt + output that one request can hold; it must fit the KV pool.

    `eos_token_ids` end every request that does not ignore them.
    """

    capacity_tokens: int
    context_len: int
    max_running_requests: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()

    @property
    def longest_tokens(self) -> int:
        return min(self.capacity_tokens, self.context_len)

"""Tail-optimised LRU: first the ends of conversations that the next turn can afford to compute again."""

from dataclasses import dataclass

from radixlm.cache.radix import Node


@dataclass(frozen=True)
class TailOptimizedLru:
    """Keeps the next turn of a conversation below `threshold` uncached tokens (arXiv 2510.15152).

    `next_prompt_estimate` tokens are expected to be added to it. What lies wholly beyond the tokens that must be kept
    for that goes before everything else, the rest least recently used first.
    """

    threshold: int = 1024
    next_prompt_estimate: int = 256

    def __post_init__(self) -> None:
        """ValueError where a next turn alone would be over the threshold: then nothing could ever be afforded."""
        if self.threshold <= self.next_prompt_estimate:
            raise ValueError(
                f"threshold {self.threshold} is not above next_prompt_estimate {self.next_prompt_estimate}"
            )

    def __call__(self, leaf: Node) -> tuple[bool, int]:
        must_keep = max(leaf.reach_tokens + self.next_prompt_estimate - self.threshold, 0)
        return leaf.start_tokens < must_keep, leaf.last_access

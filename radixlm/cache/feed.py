"""What the cache tells of its contents as they change. A page stands for its block until that is removed."""

from typing import Protocol

from radixlm.protocol.arrays import I32
from radixlm.protocol.messages import CacheNamespace


class CacheFeed(Protocol):
    """Told in the order of the changes, from the scheduler's thread: each call must be cheap and never block."""

    def stored(self, namespace: CacheNamespace, weight_version: str, parent: int, tokens: I32, pages: I32) -> None:
        """The blocks of `tokens` are cached in `pages`, one after the other; `parent` is the page before, or 0.

        The arrays are views of what goes on changing.
        """

    def removed(self, pages: I32) -> None:
        """The blocks in `pages` are not cached any more. The array is the feed's to keep."""

    def cleared(self) -> None:
        """Nothing is cached any more."""


class NoFeed:
    """Nobody listens."""

    def stored(self, namespace: CacheNamespace, weight_version: str, parent: int, tokens: I32, pages: I32) -> None:
        return

    def removed(self, pages: I32) -> None:
        return

    def cleared(self) -> None:
        return

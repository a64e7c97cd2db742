"""How far a long piece of work has come: a bar on a terminal, lines in the log elsewhere. Knows no work."""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm  # type: ignore[import-untyped]

T = TypeVar("T")

LINE_EVERY_S = 5.0  # what takes less than this leaves no line


def watched(
    items: Iterable[T], label: str, total: int, logger: logging.Logger, size: Callable[[T], int] = lambda item: 1
) -> Iterator[T]:
    """`items`, showing how much of `total` is done; each item counts as `size(item)`.

    Nothing is shown at a log level above INFO.
    """
    if not logger.isEnabledFor(logging.INFO):
        yield from items
    elif sys.stderr.isatty():
        with tqdm(total=total, desc=label, unit="", unit_scale=True, leave=False, file=sys.stderr) as bar:
            for item in items:
                yield item
                bar.update(size(item))
    else:
        yield from _logged(items, label, total, logger, size)


def _logged(
    items: Iterable[T], label: str, total: int, logger: logging.Logger, size: Callable[[T], int]
) -> Iterator[T]:
    done, began = 0, time.monotonic()
    last = began
    for item in items:
        yield item
        done += size(item)
        now = time.monotonic()
        if now - last >= LINE_EVERY_S:
            last = now
            logger.info("%s: %d %% after %.0f s", label, min(100 * done // max(total, 1), 100), now - began)

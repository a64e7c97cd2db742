"""Logging in SGLang's line format: `[2026-12-01 10:00:00] text`. One setup function per process, loggers by module."""

import logging
import sys
from types import MappingProxyType

FORMAT = "[%(asctime)s%(rank)s] %(message)s"
DATE_FORMAT = "%Y-%m-%d %H:%M:%S"
BARE = MappingProxyType({"bare": True})  # extra= of a line for programs: no prefix is put before it


class _RankFilter(logging.Filter):
    def __init__(self, rank: str) -> None:
        super().__init__()
        self._rank = f" {rank}" if rank else ""

    def filter(self, record: logging.LogRecord) -> bool:
        record.rank = self._rank
        return True


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if "bare" in record.__dict__ else super().format(record)


def setup(level: str = "info", rank: str = "") -> None:
    """Send this process's log to stderr at `level`; `rank` (such as "TP0") is put into every line's prefix."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(FORMAT, DATE_FORMAT))
    handler.addFilter(_RankFilter(rank))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def get(name: str) -> logging.Logger:
    """The logger of one module; call it as `log = get(__name__)`."""
    return logging.getLogger(name)

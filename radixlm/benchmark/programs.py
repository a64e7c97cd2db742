"""The table of benchmark programs, and picking one by its name. Knows where each is, and nothing more."""

from collections.abc import Callable, Sequence

from radixlm.base.errors import ConfigError
from radixlm.base.registry import Registry, Row

Main = Callable[[Sequence[str] | None], int]

ROWS = {
    "serving": ("serving:main", "measure a running server under load"),
    "one-batch": ("one_batch:main", "scheduler and model alone, batch by batch, without a server"),
    "one-batch-server": ("one_batch_server:main", "one batch through a server"),
    "structured": ("structured:main", "what structured output costs beside free text"),
    "offline": ("offline:main", "throughput of the Python Engine"),
    "sweep": ("sweep:main", "rising loads, and how much is served within bounds"),
    "compare": ("compare:main", "two result files, with their spread"),
    "audit": ("audit:main", "what makes a result file misleading"),
}
PROGRAMS: Registry[Main] = Registry(
    "benchmark", [Row(name, f"radixlm.benchmark.{target}") for name, (target, _) in ROWS.items()]
)


def usage() -> str:
    """The names, and what each does."""
    lines = [f"  {name:<18}{about}" for name, (_, about) in ROWS.items()]
    return "\n".join(["usage: radixlm bench NAME [options]", "", *lines, ""])


def main(argv: Sequence[str]) -> int:
    """Run the program named first with the words after it; ConfigError when there is none of that name."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage(), end="")
        return 0
    if argv[0] not in ROWS:
        raise ConfigError(f"radixlm bench knows no {argv[0]!r}; known: {', '.join(ROWS)}")
    return PROGRAMS.load(argv[0])(argv[1:])

"""A judge of grammars without a process, for tests whose grammars are harmless."""

from radixlm.grammar.base import Source
from radixlm.grammar.judge import Judge


class NoJudge(Judge):
    """Everybody is trusted."""

    def prepare(self, backend: str) -> None:
        """No process."""

    def await_ready(self) -> None:
        """Nothing to wait for."""

    def try_out(self, backend: str, source: Source, cpu_s: float, wall_s: float) -> None:
        """No trial."""

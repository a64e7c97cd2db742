"""What the tokenizer manager tells whoever counts. Knows no metric by name."""

from typing import Protocol

from radixlm.protocol.messages import Finished, SchedulerReady, SchedulerStats


class MetricsHooks(Protocol):
    """Called on the event loop, in order per request: received, first_token, inter_token ..., finished (aborted)."""

    def received(self, stream: bool) -> None:
        """A request was accepted."""

    def first_token(self, stream: bool, seconds: float) -> None:
        """Its first tokens came, `seconds` after its arrival."""

    def inter_token(self, seconds: float, tokens: int) -> None:
        """`tokens` more came, of one request or several, each `seconds` / `tokens` after the one before it."""

    def finished(
        self,
        finished: Finished,
        stream: bool,
        e2e_s: float,
        first_token_s: float | None,
        tokens: int,
        queue_time_s: float | None,
    ) -> None:
        """It ended, however it ended; `tokens` were delivered, the first after `first_token_s` (None: there was none).

        `queue_time_s` is None when the scheduler never started it.
        """

    def aborted(self) -> None:
        """It ended because its client wanted so; called after `finished`."""

    def stats(self, stats: SchedulerStats) -> None:
        """The scheduler's pulse."""

    def ready(self, ready: SchedulerReady) -> None:
        """The scheduler can serve."""

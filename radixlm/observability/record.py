"""What is remembered of one request: its times and counts, never its text. Knows no message and no metric."""

from collections.abc import Callable

import msgspec


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A request, ended or still running. `created` in Unix seconds; all other times in seconds after that.

    sent_s: handed to the scheduler, tokenized and checked. queue_time_s: waited in the queue, None if never started.
    first_token_s, last_token_s: its first and newest output. ended_s: None while it runs.
    reason: why it ended (stop, length, abort), and `status` the HTTP status of a refusal or fault.
    trace_parent: the W3C traceparent that its client sent.
    """

    rid: str
    stream: bool
    created: float
    sent_s: float
    prompt_tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0
    queue_time_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended_s: float | None = None
    reason: str | None = None
    status: int | None = None
    retractions: int = 0
    trace_parent: str | None = None

    @property
    def started_s(self) -> float | None:
        """When the scheduler first ran it."""
        return None if self.queue_time_s is None else self.sent_s + self.queue_time_s

    @property
    def inter_token_s(self) -> float | None:
        """Mean time between its tokens; None with fewer than two, or when they all came at once."""
        if self.first_token_s is None or self.last_token_s is None or self.output_tokens < 2:
            return None
        span_s = self.last_token_s - self.first_token_s
        return span_s / (self.output_tokens - 1) if span_s > 0 else None


RecordSink = Callable[[RequestRecord], None]


def to_all(*sinks: RecordSink | None) -> RecordSink | None:
    """One sink that feeds those that are there; None when there is none."""
    present = [sink for sink in sinks if sink is not None]
    if not present:
        return None

    def feed(record: RequestRecord) -> None:
        for sink in present:
            sink(record)

    return feed

"""From a choice to the record of its request. Knows no sink."""

from radixlm.frontend.choice import Choice
from radixlm.observability.record import RequestRecord


def record_of(choice: Choice, sent_at: float, tokens: int, first_s: float | None, last_at: float) -> RequestRecord:
    """`sent_at` and `last_at` (of the newest tokens) in Unix seconds; `tokens` were delivered so far."""
    started, finished, created = choice.started, choice.finished, choice.created
    return RequestRecord(
        rid=choice.rid,
        stream=choice.stream,
        created=created,
        sent_s=sent_at - created,
        prompt_tokens=choice.prompt_tokens,
        cached_tokens=0 if started is None else started.cached_tokens,
        output_tokens=tokens,
        queue_time_s=None if started is None else started.queue_time,
        first_token_s=first_s,
        last_token_s=None if first_s is None else last_at - created,
        ended_s=None if choice.finished_at is None else choice.finished_at - created,
        reason=None if finished is None else finished.reason.type,
        status=None if finished is None else finished.reason.status_code,
        retractions=0 if finished is None else finished.retractions,
        trace_parent=choice.trace_parent,
    )

"""When prompts may join the decodes that run. Only ever postpones them, and only while something decodes.

Knows counts and the time; neither requests nor memory.
"""

from collections import deque

from radixlm.config.groups import ScheduleConfig

BATCH_WINDOW = 16  # so many admitting steps back the largest one is looked for
QUEUE_DELAY_MS = 5000.0  # how long the queue trigger holds at most, unless it is told


class Pacing:
    """Rounds of decoding between prompts, and the gathering of waiting requests into larger groups.

    A step with prompt tokens makes every decoding request wait longer than one without; fewer and larger ones of them
    cost less in all.
    """

    def __init__(self, config: ScheduleConfig, most_running: int) -> None:
        self._interval = config.prefill_decode_interval or 0
        self._min_free_slots = min(config.min_free_slots_delay or 0, most_running)
        self._gathers = config.enable_prefill_delayer
        self._most_passes = config.prefill_delayer_max_delay_passes
        self._low_usage = config.prefill_delayer_token_usage_low_watermark
        self._queue_ratio = config.prefill_delayer_queue_min_ratio
        most_ms = config.prefill_delayer_max_delay_ms
        self._queue_delay_s = (QUEUE_DELAY_MS if most_ms is None else most_ms) / 1000
        self._queue_limit = config.prefill_max_requests or most_running
        self._rounds_due = 0
        self._batches: deque[int] = deque(maxlen=BATCH_WINDOW)
        self._passes = 0
        self._held_since: float | None = None

    def chunks_wait(self, decoding: int) -> bool:
        """Whether the step being planned has decode rows only; `decoding` is how many it has."""
        return self._rounds_due > 0 and decoding > 0

    def planned(self, chunks: int, admitted: int) -> None:
        """A step was planned with so many rows of prompt tokens, `admitted` of them of requests that start in it."""
        self._rounds_due = self._interval if chunks else max(self._rounds_due - 1, 0)
        if admitted:
            self._batches.append(admitted)
            self._passes, self._held_since = 0, None

    def admission_waits(self, waiting: int, running: int, free_slots: int, usage: float, now: float) -> bool:
        """Whether waiting requests are held back this time; `usage` is the used share of the KV pool."""
        if not running or not waiting:
            return False
        if free_slots < self._min_free_slots:
            return True
        if not self._gathers or (self._low_usage is not None and usage < self._low_usage):
            return False
        few_slots = free_slots < max(self._batches, default=0)
        wanted = 0.0 if self._queue_ratio is None else min(running * self._queue_ratio, self._queue_limit)
        since = now if self._held_since is None else self._held_since
        short_queue = waiting < wanted and now - since < self._queue_delay_s
        if not (few_slots or short_queue) or self._passes >= self._most_passes:
            return False
        self._passes += 1
        self._held_since = since
        return True

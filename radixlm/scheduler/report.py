"""SGLang's scheduler log lines and the rates in them. Returns strings and numbers; writes no log and reads no clock."""

from collections import deque
from dataclasses import dataclass

HIT_RATE_WINDOW_S = 15.0
STALE_S = 30.0


@dataclass(frozen=True)
class Load:
    """The numbers of a moment that several lines show."""

    running: int
    queued: int
    used_tokens: int
    total_tokens: int

    @property
    def usage(self) -> float:
        return self.used_tokens / self.total_tokens


class Reporter:
    """Counts tokens and turns them into lines, collected in `lines`.

    Attributes:
        prefill_tokens, cached_tokens, decode_tokens: totals since start. gen_throughput: of the last decode interval,
        tokens per second.
    """

    def __init__(self, decode_log_interval: int) -> None:
        self.lines: list[str] = []
        self.prefill_tokens = self.cached_tokens = self.decode_tokens = 0
        self.gen_throughput = 0.0
        self._interval = max(decode_log_interval, 1)
        self._decode_steps = 0
        self._decode_mark: tuple[float, int] | None = None
        self._prefill_mark: float | None = None
        self._hits: deque[tuple[float, int, int]] = deque()

    def prefill(self, now: float, sequences: int, new_tokens: int, cached: int, pending: int, load: Load) -> None:
        """A step with chunks was planned; `pending` prompt tokens still wait."""
        self.prefill_tokens += new_tokens
        self.cached_tokens += cached
        self._hits.append((now, cached, new_tokens))
        gap = now - self._prefill_mark if self._prefill_mark is not None else 0.0
        self._prefill_mark = now
        throughput = new_tokens / gap if gap > 0 else 0.0
        if self._decode_mark is None:
            self._decode_mark = (now, self.decode_tokens)
        self.lines.append(
            f"Prefill batch, #new-seq: {sequences}, #new-token: {new_tokens}, #cached-token: {cached}, "
            f"token usage: {load.usage:.2f}, #running-req: {load.running}, #queue-req: {load.queued}, "
            f"#pending-token: {pending}, cuda graph: False, input throughput (token/s): {throughput:.2f}"
        )

    def generated(self, tokens: int) -> None:
        """A committed step gave `tokens` output tokens."""
        self.decode_tokens += tokens

    def decode(self, now: float, load: Load, replayed: bool) -> None:
        """A step with decode rows was committed, and its tokens were counted; `replayed` from a captured graph."""
        self._decode_steps += 1
        if self._decode_mark is None:
            self._decode_mark = (now, self.decode_tokens)
        if self._decode_steps % self._interval:
            return
        since, before = self._decode_mark
        self.gen_throughput = (self.decode_tokens - before) / (now - since) if now > since else 0.0
        self._decode_mark = (now, self.decode_tokens)
        self.lines.append(
            f"Decode batch, #running-req: {load.running}, #token: {load.used_tokens}, token usage: {load.usage:.2f}, "
            f"cuda graph: {replayed}, gen throughput (token/s): {self.gen_throughput:.2f}, "
            f"#queue-req: {load.queued}"
        )

    def retraction(self, requests: int, tokens_gained: int, ratio_before: float, ratio: float) -> None:
        self.lines.append(
            f"KV cache pool is full. Retract requests. #retracted_reqs: {requests}, "
            f"#new_tokens_gained: {tokens_gained}, #new_token_ratio: {ratio_before:.4f} -> {ratio:.4f}"
        )

    def preemption(self, requests: int) -> None:
        self.lines.append(f"Preempt requests for a more urgent one. #preempted_reqs: {requests}")

    def idle(self) -> None:
        """Nothing runs: the next interval starts with the next step."""
        self._decode_mark = self._prefill_mark = None

    def current_gen_throughput(self, now: float) -> float:
        """`gen_throughput`, or 0 when there has been no report for STALE_S seconds."""
        return self.gen_throughput if self._decode_mark is not None and now - self._decode_mark[0] < STALE_S else 0.0

    def cache_hit_rate(self, now: float) -> float:
        """cached / (cached + computed) prompt tokens of the last HIT_RATE_WINDOW_S seconds."""
        while self._hits and self._hits[0][0] < now - HIT_RATE_WINDOW_S:
            self._hits.popleft()
        cached = sum(hit for _, hit, _ in self._hits)
        total = cached + sum(new for _, _, new in self._hits)
        return cached / total if total else 0.0

    def take_lines(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

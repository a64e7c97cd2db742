"""One request as the scheduler knows it: what was asked, its state, and what outlives its time on a device row.

While a request runs, its growing numbers live in the slot table; this record holds them again after a retraction.
"""

from dataclasses import dataclass, field
from enum import Enum

from radixlm.cache.manager import Lease
from radixlm.protocol.arrays import F32, I32, empty_i32
from radixlm.protocol.extras import Extras, LogprobOptions
from radixlm.protocol.messages import CacheNamespace, TextOptions
from radixlm.protocol.plan import Reading
from radixlm.protocol.sampling import SamplingParams
from radixlm.scheduler.stops import StopMatcher


class State(Enum):
    """HELD until the loop releases it; WAITING for a slot; PARKED until another request has computed a shared prefix;
    RUNNING on a slot; DONE."""

    HELD = "held"
    WAITING = "waiting"
    PARKED = "parked"
    RUNNING = "running"
    DONE = "done"


SAMPLE_ONLY = Reading(0, empty_i32())
_LEGAL = {
    State.HELD: (State.WAITING, State.DONE),
    State.WAITING: (State.PARKED, State.RUNNING, State.DONE),
    State.PARKED: (State.WAITING, State.DONE),
    State.RUNNING: (State.WAITING, State.DONE),
    State.DONE: (),
}


@dataclass(eq=False, slots=True)
class Request:
    """One choice to be generated.

    history: int32 [prompt_tokens + produced]: the prompt, and after a retraction the outputs so far.
    order: arrival number; a retracted request keeps it. max_outputs: clamped to what fits.
    urgency: larger is more urgent; 0 without priority scheduling. standing: the same for what it leaves in the cache,
    and its priority then. routing_key: a label by which a client groups its requests, or "".
    stop_ids: token ids that end it, the model's own included; empty when it ignores them. own_stop_ids: some of these
    are its own, so the model's table is not enough. matcher: stop strings and patterns, if any.
    sent: output tokens already given to the outbox. block_hashes: see sharing.py; filled when first needed.
    logprobs, hidden_start, embeds, second_at: as in TokenizedGenerateReqInput. read: how many positions were read out
    before a retraction, which are not read out again. extras: what was read out and is not sent yet.
    constrained: the host has a say in its next tokens.
    """

    key: int
    order: int
    history: I32
    prompt_tokens: int
    sampling: SamplingParams
    text: TextOptions
    stream: bool
    namespace: CacheNamespace
    max_outputs: int
    stop_ids: tuple[int, ...]
    own_stop_ids: bool
    matcher: StopMatcher | None
    enqueued_at: float
    urgency: int = 0
    standing: int = 0
    routing_key: str = ""
    state: State = State.WAITING
    slot: int = -1
    lease: Lease | None = None
    queue_time: float = 0.0
    sent: int = 0
    announced: bool = False
    started: bool = False
    cached_tokens: int = 0
    retractions: int = 0
    block_hashes: list[int] = field(default_factory=list)
    logprobs: LogprobOptions | None = None
    hidden_start: int | None = None
    embeds: F32 | None = None
    second_at: int | None = None
    read: int = 0
    extras: list[Extras] = field(default_factory=list)
    constrained: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Its place in the queue: urgent ones first, then in order of arrival."""
        return -self.urgency, self.order

    @property
    def produced(self) -> int:
        """Output tokens in `history`; up to date only while the request is not running."""
        return len(self.history) - self.prompt_tokens

    @property
    def cacheable(self) -> bool:
        """Whether its tokens say what its KV is."""
        return self.embeds is None

    @property
    def has_readings(self) -> bool:
        """Whether its steps are read out for more than tokens."""
        return self.logprobs is not None or self.hidden_start is not None

    @property
    def reusable(self) -> I32:
        """The part of `history` whose cached prefix it may use, the last token never included.

        Positions that are still to be read out are computed, so the prefix ends before them.
        """
        if not self.cacheable:
            return self.history[:1]
        if not self.has_readings:
            return self.history
        first = len(self.history) - 1
        if self._first_scored < self.prompt_tokens - 1:
            first = self._first_scored
        if self.hidden_start is not None:
            first = min(first, max(self.hidden_start, self.read))
        return self.history[: first + 1]

    def reading(self, start: int, end: int, tokens: I32, samples: bool) -> Reading | None:
        """What positions [start, end) are read out for; `tokens` (int32) are the prompt's and more."""
        if start >= self.prompt_tokens and self.hidden_start is None:
            return SAMPLE_ONLY if samples and self.logprobs is not None else None
        first = min(max(self._first_scored, start), end)
        targets = tokens[first + 1 : min(end, self.prompt_tokens - 1) + 1]
        hidden = None if self.hidden_start is None else max(self.hidden_start, self.read, start)
        if hidden is not None and hidden >= end:
            hidden = None
        if not len(targets) and hidden is None and not (samples and self.logprobs is not None):
            return None
        return Reading(first - start, targets.copy(), None if hidden is None else hidden - start)

    @property
    def _first_scored(self) -> int:
        """The first position whose logits still score a prompt token, if it is not behind the prompt."""
        return self.prompt_tokens if self.logprobs is None else max(self.logprobs.start, self.read)

    def move(self, state: State) -> None:
        """Change state; ValueError for a transition that is not legal."""
        if state not in _LEGAL[self.state]:
            raise ValueError(f"request {self.key} cannot go from {self.state.value} to {state.value}")
        self.state = state

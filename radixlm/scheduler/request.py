"""One request as the scheduler knows it: what was asked, its state, and what outlives its time on a device row.

While a request runs, its growing numbers live in the slot table; this record holds them again after a retraction.
"""

from dataclasses import dataclass, field
from enum import Enum

from radixlm.cache.manager import Lease
from radixlm.protocol.arrays import I32
from radixlm.protocol.messages import CacheNamespace, TextOptions
from radixlm.protocol.sampling import SamplingParams
from radixlm.scheduler.stops import StopMatcher


class State(Enum):
    """WAITING for a slot; PARKED until another request has computed a shared prefix; RUNNING on a slot; DONE."""

    WAITING = "waiting"
    PARKED = "parked"
    RUNNING = "running"
    DONE = "done"


_LEGAL = {
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
    urgency: larger is more urgent; 0 without priority scheduling.
    stop_ids: token ids that end it, the model's own included; empty when it ignores them. own_stop_ids: some of these
    are its own, so the model's table is not enough. matcher: stop strings and patterns, if any.
    sent: output tokens already given to the outbox. block_hashes: see sharing.py; filled when first needed.
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

    @property
    def rank(self) -> tuple[int, int]:
        """Its place in the queue: urgent ones first, then in order of arrival."""
        return -self.urgency, self.order

    @property
    def produced(self) -> int:
        """Output tokens in `history`; up to date only while the request is not running."""
        return len(self.history) - self.prompt_tokens

    def move(self, state: State) -> None:
        """Change state; ValueError for a transition that is not legal."""
        if state not in _LEGAL[self.state]:
            raise ValueError(f"request {self.key} cannot go from {self.state.value} to {state.value}")
        self.state = state

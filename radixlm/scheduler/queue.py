"""The requests without a slot: those that may be tried, by urgency and arrival, and those parked behind another one."""

from bisect import bisect_left

from radixlm.scheduler.request import Request, State


class WaitingQueue:
    """Owns no state of a request beyond its place here.

    Attributes:
        waiting: requests that may be tried, urgent ones first, then the oldest.
        count, tokens: requests and tokens queued, parked included.
    """

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.count = 0
        self.tokens = 0

    def add(self, request: Request) -> None:
        """A new request, or a retracted one, which goes back to its old place."""
        self.count += 1
        self.tokens += len(request.history)
        self._insert(request)

    def remove(self, request: Request) -> None:
        """The request starts or ends; it may be parked."""
        if request.state is State.WAITING:
            del self.waiting[self._place(request)]
        self.count -= 1
        self.tokens -= len(request.history)

    def park(self, request: Request) -> None:
        del self.waiting[self._place(request)]
        request.move(State.PARKED)

    def unpark(self, request: Request) -> None:
        request.move(State.WAITING)
        self._insert(request)

    def _insert(self, request: Request) -> None:
        self.waiting.insert(self._place(request), request)

    def _place(self, request: Request) -> int:
        return bisect_left(self.waiting, request.rank, key=lambda other: other.rank)

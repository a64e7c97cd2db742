"""Notices that nothing moves although there is work. Knows neither requests nor reasons."""

STALL_S = 30.0  # nothing that is decided here takes long: this much is a mistake somewhere


class StallWatch:
    """Called whenever nothing was planned; time is the caller's, in seconds."""

    def __init__(self) -> None:
        self._since: float | None = None

    def moved(self) -> None:
        """A step was planned, or there is no work."""
        self._since = None

    def stalled(self, now: float) -> bool:
        """There is work, nothing is in flight and nothing was planned: whether that has been so for STALL_S.

        After True the time begins anew.
        """
        if self._since is None:
            self._since = now
        if now - self._since < STALL_S:
            return False
        self._since = now
        return True

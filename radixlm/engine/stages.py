"""Where the loop's time goes, by stage, and how its steps ran; under SGLang's names. Knows no step and no message."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable


class StageClock:
    """Adds up the time between two laps.

    Attributes:
        seconds: by "stage|overlap": overlap is `full` while the device was computing an earlier step, otherwise `none`.
        passes: forward passes by mode, such as `decode_cuda_graph` or `prefill_none`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.passes: Counter[str] = Counter()
        self._clock = clock
        self._last = clock()

    def lap(self, stage: str, overlapped: bool = False) -> None:
        """What happened since the last lap was `stage`."""
        now = self._clock()
        self.seconds[f"{stage}|full" if overlapped else f"{stage}|none"] += now - self._last
        self._last = now

    def passed(self, prefill: bool, replayed: bool) -> None:
        """A step ran; with `prefill` it had prompt tokens, `replayed` from a captured graph."""
        self.passes[f"{'prefill' if prefill else 'decode'}_{'cuda_graph' if replayed else 'none'}"] += 1

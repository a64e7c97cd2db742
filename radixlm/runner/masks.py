"""Which tokens the host allows some rows of a step, and when it is asked. Knows rows and bits, not grammars."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from radixlm.protocol.arrays import I32, I64


@dataclass(frozen=True)
class TokenMasks:
    """rows: int64 [M], rising; bits: int32 [M, words], bit t % 32 of word t // 32 allows token t."""

    rows: I64
    bits: I32

    def among(self, chosen: I64) -> "TokenMasks":
        """The same masks by place in `chosen` (int64, rising), which has all the rows."""
        return TokenMasks(np.searchsorted(chosen, self.rows), self.bits)

    def within(self, span: slice) -> "TokenMasks | None":
        """Those of rows [start, stop), counted from its start; None without any."""
        first, last = np.searchsorted(self.rows, (span.start, span.stop))
        if first == last:
            return None
        return TokenMasks(self.rows[first:last] - span.start, self.bits[first:last])


MaskSource: TypeAlias = Callable[[], TokenMasks | None]  # asked once, when a step's forward pass is under way

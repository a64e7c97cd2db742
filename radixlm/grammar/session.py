"""One request's say in its own next tokens, through thinking, grammar and processor. Knows tokens, not requests.

A session sees committed tokens only, in order; so it is the same after a retraction, and for every run-ahead depth.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from radixlm.grammar.base import WORD_BITS, GrammarError, Matcher, Vocabulary, allow, forbid
from radixlm.grammar.processors.base import Processor
from radixlm.protocol.arrays import I32
from radixlm.protocol.grammar import Thinking


@dataclass(frozen=True, eq=False)
class Spelling:
    """What every token id is spelled as, special ones too, and the ids by their spelling."""

    pieces: Sequence[bytes]
    ids: Mapping[bytes, int]

    @staticmethod
    def of(pieces: Sequence[bytes]) -> "Spelling":
        return Spelling(pieces, {piece: id_ for id_, piece in reversed(list(enumerate(pieces)))})


class Phase:
    """Whether the answer has begun: read off the tokens, by the marks of thinking."""

    def __init__(self, thinking: Thinking | None, spelling: Spelling) -> None:
        opener = spelling.ids.get(thinking.opener.encode()) if thinking is not None and thinking.opener else None
        self._spelling = spelling
        self._closer = thinking.closer.encode() if thinking is not None else b""
        self._inside = thinking is not None and thinking.inside
        self._tail = b""
        self.opener = opener if not self._inside else None

    @property
    def answering(self) -> bool:
        """Thinking is over; where it has not begun, it may still begin with `opener`."""
        return not self._inside

    def feed(self, token: int) -> bool:
        """Take the next token; whether it is part of the answer."""
        if not self._inside:
            self._inside = token == self.opener
            self.opener = None
            return not self._inside
        piece = self._spelling.pieces[token] if token < len(self._spelling.pieces) else b""
        window = self._tail + piece
        if self._closer in window:
            self._inside = False
        self._tail = window[-len(self._closer) :]
        return False


class Session:
    """Fills masks and takes tokens until it is over."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        phase: Phase,
        matcher: Matcher | None,
        processor: Processor | None = None,
        stop_ids: Sequence[int] = (),
        min_new_tokens: int = 0,
    ) -> None:
        """`stop_ids` may not come before `min_new_tokens` tokens, unless nothing else may."""
        self._vocabulary = vocabulary
        self._phase = phase
        self._matcher = matcher
        self._processor = processor
        self._stop_ids = tuple(stop_ids)
        self._min_new_tokens = min_new_tokens
        self._taken = 0
        self._next: I32 | None = None  # the matcher's next mask, where it is known already

    def fill(self, mask: I32) -> bool:
        """Write which tokens may come next (int32 [words]); False when any may, and `mask` means nothing.

        GrammarError when none may.
        """
        bound = self._fill_grammar(mask)
        if self._taken < self._min_new_tokens and self._stop_ids:
            bound = self._narrow(mask, bound, lambda: forbid(mask, self._stop_ids))
        if self._processor is not None and self._processor.narrows():
            processor = self._processor
            bound = self._narrow(mask, bound, lambda: processor.fill(mask))
        return bound

    def accept(self, token: int) -> bool:
        """Take a committed token. True when the answer is complete: only a stop could follow. GrammarError when the
        grammar does not allow it."""
        self._taken += 1
        known, self._next = self._next, None
        if self._processor is not None:
            self._processor.accept(token)
        if not self._phase.feed(token) or self._matcher is None:
            self._next = known
            return False
        if not self._matcher.accept(token):
            raise GrammarError(f"it does not allow token {token}, which was sampled")
        if token in self._vocabulary.stop_ids:
            return True
        return self._matcher.may_end() and self._only_stops()

    def _fill_grammar(self, mask: I32) -> bool:
        if self._matcher is None or not self._phase.answering:
            return False
        if self._next is not None:
            mask[:] = self._next
        else:
            self._matcher.fill(mask)
        if self._phase.opener is not None:
            allow(mask, (self._phase.opener,))
        if not mask.any():
            raise GrammarError("it allows nothing here that this model can say")
        return True

    def _narrow(self, mask: I32, bound: bool, forbidding: Callable[[], None]) -> bool:
        """Forbid more, unless that would leave nothing; whether the mask means something now."""
        if not bound:
            mask[:] = -1
        before = mask.copy()
        forbidding()
        if not _within(mask, self._vocabulary.size).any():
            mask[:] = before
            return bound
        return True

    def _only_stops(self) -> bool:
        """Whether a stop is all that the grammar allows next; the mask is kept for the next step."""
        assert self._matcher is not None
        mask = np.zeros(self._vocabulary.words, np.int32)
        self._matcher.fill(mask)
        self._next = mask
        rest = mask.copy()
        forbid(rest, self._vocabulary.stop_ids)
        return not rest.any()


def _within(mask: I32, size: int) -> I32:
    """A copy of the mask without the bits behind the vocabulary."""
    inside = mask.copy()
    spare = len(mask) * WORD_BITS - size
    if spare:
        inside.view(np.uint32)[-1] &= np.uint32(0xFFFFFFFF >> spare)
    return inside

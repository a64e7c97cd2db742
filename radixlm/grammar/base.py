"""What a grammar backend is, and the one interface by which an answer follows a grammar. Knows no backend."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from radixlm.base.errors import RadixError
from radixlm.protocol.arrays import I32
from radixlm.protocol.grammar import Kind

WORD_BITS = 32
YIELDING = 10  # niceness of whatever compiles: it must not take the processor from what generates
STEP_LIMIT_S = 0.25  # processor time that the masks of one step may take, of which all other answers wait for the end


def allow(mask: I32, tokens: Sequence[int]) -> None:
    """Set the bits of `tokens` in a mask (int32 [words])."""
    flat = mask.view(np.uint32)
    for token in tokens:
        flat[token // WORD_BITS] |= np.uint32(1 << token % WORD_BITS)


def forbid(mask: I32, tokens: Sequence[int]) -> None:
    """Clear the bits of `tokens` in a mask (int32 [words])."""
    flat = mask.view(np.uint32)
    for token in tokens:
        flat[token // WORD_BITS] &= np.uint32(~(1 << token % WORD_BITS) & 0xFFFFFFFF)


class GrammarError(RadixError):
    """A grammar cannot be used; the message says why, in one line, to the client who sent it."""


class GrammarTimeout(GrammarError):
    """It could not be compiled in the time allowed; another time it might."""


class GrammarTooHeavy(GrammarError):
    """It takes more processor time to compile than it was allowed."""


class GrammarUnsupported(GrammarError):
    """It may be valid, but this backend cannot enforce it; another one might."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The text of every token id, as bytes; b"" where an id means no text that an answer may contain.

    size: the model's vocabulary, at least the number of texts. stop_ids: they end an answer.
    """

    texts: list[bytes]
    stop_ids: tuple[int, ...]
    size: int

    @property
    def words(self) -> int:
        """Length of a mask, in int32 words."""
        return -(-self.size // WORD_BITS)


@dataclass(frozen=True)
class Whitespace:
    """Where JSON may have white space: up to `most` characters in a row, 0 for none, or what `pattern` matches."""

    most: int = 16
    pattern: str | None = None


@dataclass(frozen=True)
class Source:
    """A grammar as a client wrote it, and the server's rule for white space in JSON: all that a compilation needs."""

    kind: Kind
    text: str
    whitespace: Whitespace = field(default_factory=Whitespace)


class Matcher(Protocol):
    """Where one answer stands in its grammar. Tokens go in once they are committed, and never out of order."""

    def fill(self, mask: I32) -> None:
        """Write which tokens may come next: int32 [words], token t is bit t % 32 of word t // 32.

        Stop tokens are among them where the answer may end. GrammarError when the grammar asks too much here.
        """

    def accept(self, token: int) -> bool:
        """The answer goes on with `token`; False when the grammar does not allow it, and the matcher is spent."""

    def may_end(self) -> bool:
        """Whether the answer could end here."""

    def rollback(self, tokens: int) -> None:
        """Take back the last `tokens` accepted."""


class Grammar(Protocol):
    """A compiled grammar, which any number of answers may follow at once."""

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""

    def matcher(self) -> Matcher: ...


class GrammarBackend(Protocol):
    """A library that compiles grammars over one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None: ...

    @classmethod
    def why_not(cls, source: Source) -> list[str]:
        """The reasons why this backend cannot enforce `source` to the letter, or is not there at all."""

    def compile(self, source: Source) -> Grammar:
        """GrammarError when it is not valid. May take long and much memory; holds the interpreter only briefly."""

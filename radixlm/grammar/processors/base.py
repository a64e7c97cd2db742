"""What a logit processor is: a rule about the next token that a request names and the server has. Knows no rule."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from radixlm.grammar.base import Vocabulary
from radixlm.protocol.arrays import I32
from radixlm.protocol.grammar import Thinking


@dataclass(frozen=True)
class ProcessorFacts:
    """What a processor is made from.

    params: the request's `custom_params`. ids: token ids by their spelling. thinking: how the request's thinking is
    told from its answer, None where it is not.
    """

    params: Mapping[str, Any]
    vocabulary: Vocabulary
    ids: Mapping[bytes, int]
    thinking: Thinking | None


class Processor(Protocol):
    """One request's rule. It may only forbid; what a grammar demands comes first."""

    def narrows(self) -> bool:
        """Whether `fill` would forbid anything now."""

    def fill(self, mask: I32) -> None:
        """Clear the bits of tokens that may not come next: token t is bit t % 32 of word t // 32."""

    def accept(self, token: int) -> None:
        """The next token has come."""


class ProcessorMaker(Protocol):
    """What a name stands for."""

    def __call__(self, facts: ProcessorFacts) -> Processor:
        """GrammarError when the parameters are not what the rule needs."""

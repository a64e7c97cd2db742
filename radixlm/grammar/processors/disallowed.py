"""Tokens that may never come: `custom_params.token_ids`. Knows ids only."""

from radixlm.grammar.base import GrammarError, forbid
from radixlm.grammar.processors.base import ProcessorFacts
from radixlm.protocol.arrays import I32


class DisallowedTokens:
    """Forbids the listed tokens throughout."""

    def __init__(self, facts: ProcessorFacts) -> None:
        ids, size = facts.params.get("token_ids"), facts.vocabulary.size
        if not isinstance(ids, list) or not all(type(id_) is int and 0 <= id_ < size for id_ in ids):
            raise GrammarError(f"custom_params.token_ids must be a list of token ids below {size}")
        self._ids = tuple(ids)

    def narrows(self) -> bool:
        return bool(self._ids)

    def fill(self, mask: I32) -> None:
        forbid(mask, self._ids)

    def accept(self, token: int) -> None:
        """Nothing to remember."""

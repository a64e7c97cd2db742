"""A limit on thinking: after `custom_params.thinking_budget` tokens of it the closing mark must come."""

from radixlm.grammar.base import GrammarError, allow
from radixlm.grammar.processors.base import ProcessorFacts
from radixlm.protocol.arrays import I32


class ThinkingBudget:
    """Counts tokens from the opening mark on; forces a line break and the closing mark when they are used up."""

    def __init__(self, facts: ProcessorFacts) -> None:
        budget = facts.params.get("thinking_budget")
        if type(budget) is not int or budget < 0:
            raise GrammarError("custom_params.thinking_budget must be a whole number, at least 0")
        if facts.thinking is None:
            raise GrammarError("a thinking budget needs a server with --reasoning-parser and a prompt that may think")
        closer = facts.ids.get(facts.thinking.closer.encode())
        opener = facts.ids.get(facts.thinking.opener.encode()) if facts.thinking.opener else None
        if closer is None:
            raise GrammarError(f"this model has no single token for {facts.thinking.closer!r}, so it cannot be forced")
        self._left = budget
        self._closer = closer
        self._opener = opener
        self._inside = facts.thinking.inside
        newline = facts.ids.get(b"\n")
        self._forced = [closer] if newline is None or budget == 0 else [newline, closer]

    def narrows(self) -> bool:
        return self._inside and self._left <= 0

    def fill(self, mask: I32) -> None:
        mask[:] = 0
        allow(mask, self._forced[:1])

    def accept(self, token: int) -> None:
        if not self._inside:
            self._inside = token == self._opener
            self._opener = None
            return
        if token == self._closer:
            self._inside = False
        elif self._left <= 0:
            del self._forced[:-1]
        self._left -= 1

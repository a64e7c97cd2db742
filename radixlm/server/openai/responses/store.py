"""Responses that can be asked for again, in memory, the newest ones only. Knows no route."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import Choice
from radixlm.server.limits import MAX_STORED_RESPONSES
from radixlm.server.openai.responses.reply import Reply


@dataclass
class Stored:
    """A response, with the conversation that led to it (without instructions, which do not carry over).

    `choice` and `work` belong to one made in the background; `cancelled` once somebody wanted it to stop.
    """

    reply: Reply
    turns: list[dict[str, Any]]
    choice: Choice | None = None
    work: "asyncio.Task[None] | None" = None
    cancelled: bool = False

    def history(self) -> list[dict[str, Any]]:
        """The conversation including the answer. RequestError while there is none."""
        if self.reply.status not in ("completed", "incomplete"):
            raise RequestError(
                f"Response {self.reply.id} is {self.reply.status}; only a completed one can be continued",
                "previous_response_id",
            )
        return [*self.turns, self.reply.output.turn()]


@dataclass
class ResponseStore:
    """The last MAX_STORED_RESPONSES responses by id; the oldest that no longer run make room."""

    _held: dict[str, Stored] = field(default_factory=dict)

    def add(self, stored: Stored) -> None:
        self._held.pop(stored.reply.id, None)
        self._held[stored.reply.id] = stored
        ended = [key for key, one in self._held.items() if one.work is None or one.work.done()]
        for key in ended[: max(len(self._held) - MAX_STORED_RESPONSES, 0)]:
            del self._held[key]

    def get(self, identity: str, field: str = "response_id") -> Stored:
        """RequestError 404 when there is none."""
        found = self._held.get(identity)
        if found is None:
            raise RequestError(f"Response with id '{identity}' not found.", field, 404, "response_not_found")
        return found

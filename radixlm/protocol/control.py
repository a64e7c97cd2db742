"""Control verbs: one row each gives name, request, reply, HTTP methods, path and the key level that may call it.

engine/control.py holds the function of each verb, and the server makes the routes from these rows.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

Level = Literal["public", "user", "admin"]


class Empty(msgspec.Struct, frozen=True):
    """A request or reply without fields."""


class FlushCacheReply(msgspec.Struct, frozen=True):
    """`success` is False when requests were running or waiting, and nothing was flushed."""

    success: bool
    message: str


class InternalStateReply(msgspec.Struct, frozen=True):
    """Live numbers of the scheduler, for /server_info and debugging."""

    state: dict[str, str | int | float | bool | None]


@dataclass(frozen=True)
class Verb:
    """One control verb. `path` None means it has no route of its own."""

    name: str
    request: type[msgspec.Struct]
    reply: type[msgspec.Struct]
    methods: tuple[str, ...]
    path: str | None
    level: Level


VERBS: tuple[Verb, ...] = (
    Verb("flush_cache", Empty, FlushCacheReply, ("GET", "POST"), "/flush_cache", "admin"),
    Verb("internal_state", Empty, InternalStateReply, ("GET",), None, "user"),
)

BY_NAME = {verb.name: verb for verb in VERBS}

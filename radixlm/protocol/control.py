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


class PauseReq(msgspec.Struct, frozen=True):
    """How generation stops. `abort`: what runs is ended by the tokenizer manager, and the scheduler itself goes on;
    `retract`: what runs goes back into the queue, its outputs kept and its KV freed; `in_place`: it stays as it is."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueReq(msgspec.Struct, frozen=True):
    """`torch_empty_cache` is SGLang's and has no effect: nothing is given back to the driver by a pause."""

    torch_empty_cache: bool = True


class DoneReply(msgspec.Struct, frozen=True):
    """It has been done."""

    message: str
    status: str = "ok"


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
    Verb("pause_generation", PauseReq, DoneReply, ("POST",), "/pause_generation", "admin"),
    Verb("continue_generation", ContinueReq, DoneReply, ("POST",), "/continue_generation", "admin"),
    Verb("internal_state", Empty, InternalStateReply, ("GET",), None, "user"),
)

BY_NAME = {verb.name: verb for verb in VERBS}

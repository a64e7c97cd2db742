"""Control verbs: one row each gives name, request, reply, HTTP methods, path and the key level that may call it.

engine/control.py holds the function of each verb, and the server makes the routes from these rows.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

MOST_STEPS = 1_000_000  # of one profile
_FILE_WORD = r"^[A-Za-z0-9_.-]{1,128}$"

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


class TreeReq(msgspec.Struct, frozen=True):
    """How many nodes of the prefix tree to show, and how many token ids of the beginning of each."""

    most: Annotated[int, msgspec.Meta(ge=1, le=500)] = 120
    head_tokens: Annotated[int, msgspec.Meta(ge=0, le=64)] = 24


class TreeNode(msgspec.Struct, frozen=True):
    """A node: `parent` is an index into the reply's list, -1 below the root; `uses` counts leases ever, `locks` those
    now; `age` is in uses of the tree since this one's last; `children` counts all; `head` are its first token ids."""

    parent: int
    tokens: int
    uses: int
    locks: int
    age: int
    children: int
    head: list[int]


class TreeReply(msgspec.Struct, frozen=True):
    """The hottest nodes, parents before children, and the whole tree's size in nodes and tokens."""

    nodes: list[TreeNode]
    total_nodes: int
    total_tokens: int
    evictable_tokens: int


class StartProfileReq(msgspec.Struct, frozen=True):
    """What to record: `num_steps` steps, or until /stop_profile, after the first `start_step`."""

    output_dir: str | None = None
    start_step: Annotated[int, msgspec.Meta(ge=0, le=MOST_STEPS)] | None = None
    num_steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)] | None = None
    activities: list[Literal["CPU", "GPU"]] | None = None
    with_stack: bool | None = None
    record_shapes: bool | None = None
    profile_id: Annotated[str, msgspec.Meta(pattern=_FILE_WORD)] | None = None
    profile_prefix: Annotated[str, msgspec.Meta(pattern=_FILE_WORD)] | None = None
    profile_by_stage: Literal[False] | None = None
    merge_profiles: Literal[False] | None = None


class TraceReply(msgspec.Struct, frozen=True):
    """Where the trace is, or will be."""

    path: str


class WeightReq(msgspec.Struct, frozen=True):
    """A weight by its name in a Hugging Face checkpoint; its first `truncate_size` rows are wanted."""

    name: str
    truncate_size: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 100


class WeightReply(msgspec.Struct, frozen=True):
    """The values, in float32, nested as the weight's dimensions."""

    values: list[Any]


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
    Verb("start_profile", StartProfileReq, TraceReply, ("GET", "POST"), "/start_profile", "admin"),
    Verb("stop_profile", Empty, TraceReply, ("GET", "POST"), "/stop_profile", "admin"),
    Verb("get_weights_by_name", WeightReq, WeightReply, ("GET", "POST"), "/get_weights_by_name", "admin"),
    Verb("tree", TreeReq, TreeReply, ("GET",), None, "admin"),
)

BY_NAME = {verb.name: verb for verb in VERBS}

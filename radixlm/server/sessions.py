"""Sessions: conversations by token ids, continued from any earlier turn. Knows prompts and answers, no cache.

What a turn shares with an earlier one is found in the prefix cache like any other prefix, so a session holds no memory
of the scheduler's, and closing one frees only what is kept here.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from radixlm.base.errors import RequestError
from radixlm.protocol.arrays import I32
from radixlm.server.limits import MAX_SESSIONS, MAX_TURNS


class SessionParams(msgspec.Struct, kw_only=True, frozen=True):
    """Where a request stands in its session.

    `rid`: the turn to go on from; None begins anew (in a streaming session: goes on from the last turn). `offset`: so
    many tokens of that turn are kept; None or 0 all. `replace` forgets the turns after it first, or, without `rid`,
    all turns. `drop_previous_output`: go on from that turn's prompt.
    """

    id: str
    rid: str | None = None
    offset: int | None = None
    replace: bool | None = None
    drop_previous_output: bool | None = None


@dataclass
class _Turn:
    """One request of a session; `output` is None while it runs."""

    parent: str | None
    prompt: I32
    output: I32 | None = None


@dataclass
class _Session:
    streaming: bool
    timeout_s: float | None
    used_at_s: float
    turns: dict[str, _Turn] = field(default_factory=dict)
    last: str | None = None


class Sessions:
    """The open sessions of this server. Those with a timeout close themselves when they are not used for so long."""

    def __init__(self, streaming: bool = False, now: Callable[[], float] = time.monotonic) -> None:
        """`streaming`: whether streaming sessions may be opened."""
        self._streaming = streaming
        self._now = now
        self._open: dict[str, _Session] = {}

    def open(self, id_: str | None, streaming: bool, timeout_s: float | None) -> str:
        """Open a session and return its id. RequestError when the id is taken or there are too many."""
        if streaming and not self._streaming:
            raise RequestError("Streaming sessions need --enable-streaming-session.", "streaming")
        self._expire()
        id_ = id_ or uuid.uuid4().hex
        if id_ in self._open:
            raise RequestError(f"Session {id_!r} is already open.", "session_id")
        if len(self._open) >= MAX_SESSIONS:
            raise RequestError(f"There are {MAX_SESSIONS} open sessions: close some first.", "session_id")
        self._open[id_] = _Session(streaming, timeout_s, self._now())
        return id_

    def close(self, id_: str) -> list[str]:
        """Forget a session, if there is one; returns the ids of its requests that still run."""
        session = self._open.pop(id_, None)
        return _running(session.turns, session.turns) if session is not None else []

    def begin(self, params: SessionParams, rid: str, tokens: Sequence[int], bos: int | None) -> tuple[I32, list[str]]:
        """A new turn called `rid` that adds `tokens`: its whole prompt, and the requests that it replaces.

        RequestError when the session or the turn to go on from is not there, or that turn still runs.
        """
        self._expire()
        session = self._open.get(params.id)
        if session is None:
            raise RequestError(f"Invalid request: session {params.id} does not exist", "session_params.id")
        if rid in session.turns:
            raise RequestError(f"Session {params.id} already has a turn {rid!r}", "rid")
        parent = _parent_of(session, params)
        replaced = list(_after(session.turns, parent)) if params.replace else []
        if len(session.turns) - len(replaced) >= MAX_TURNS:
            raise RequestError(f"Session {params.id} has {MAX_TURNS} turns: no more are kept", "session_params.id")
        prompt = _prompt(session, parent, params, np.asarray(tokens, np.int32), bos)
        stopped = _running(session.turns, replaced)
        for gone in replaced:
            del session.turns[gone]
        session.turns[rid] = _Turn(parent, prompt)
        session.last, session.used_at_s = rid, self._now()
        return prompt, stopped

    def finish(self, id_: str, rid: str, output: Sequence[int] | None) -> None:
        """A turn has ended with these tokens, or (None) failed: then it is as if it had not been."""
        session = self._open.get(id_)
        turn = session.turns.get(rid) if session is not None else None
        if session is None or turn is None or turn.output is not None:
            return
        if output is None:
            del session.turns[rid]
            session.last = turn.parent if session.last == rid else session.last
        else:
            turn.output = np.asarray(output, np.int32)
        session.used_at_s = self._now()

    def _expire(self) -> None:
        now_s = self._now()
        for id_, session in list(self._open.items()):
            idle_s = now_s - session.used_at_s
            late = session.timeout_s is not None and idle_s > session.timeout_s
            if late and not _running(session.turns, session.turns):
                del self._open[id_]


def _parent_of(session: _Session, params: SessionParams) -> str | None:
    """The turn to go on from; RequestError when there is none of that name, or it still runs."""
    if session.streaming:
        if params.rid is not None or params.offset or params.replace or params.drop_previous_output:
            raise RequestError(
                "A streaming session only appends: rid, offset, replace and drop_previous_output have no place in it",
                "session_params",
            )
        parent = session.last
    else:
        parent = params.rid
    if parent is None:
        return None
    turn = session.turns.get(parent)
    if turn is None:
        raise RequestError(f"Session {params.id} has no turn {parent!r}", "session_params.rid")
    if turn.output is None and not (params.replace or params.drop_previous_output):
        raise RequestError(f"The turn {parent!r} of session {params.id} has not ended yet", "session_params.rid")
    return parent


def _prompt(session: _Session, parent: str | None, params: SessionParams, new: I32, bos: int | None) -> I32:
    if parent is None:
        return new
    turn = session.turns[parent]
    output = None if params.drop_previous_output else turn.output
    history = turn.prompt if output is None else np.concatenate((turn.prompt, output))
    if params.offset:
        if not 0 < params.offset <= len(history):
            raise RequestError(
                f"offset must be from 0 to the {len(history)} tokens of turn {parent!r}, got {params.offset}",
                "session_params.offset",
            )
        history = history[: params.offset]
    if len(new) and new[0] == bos:
        new = new[1:]
    return np.concatenate((history, new))


def _after(turns: dict[str, _Turn], parent: str | None) -> Iterator[str]:
    """Every turn that goes back to `parent`, itself not among them; all of them for None."""
    kept = {parent}
    for rid, turn in turns.items():  # a turn comes after its parent
        if parent is None or turn.parent in kept:
            kept.add(rid)
            yield rid


def _running(turns: dict[str, _Turn], of: Iterable[str]) -> list[str]:
    return [rid for rid in of if turns[rid].output is None]

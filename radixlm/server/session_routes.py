"""/open_session and /close_session, and the part of /generate that goes on in a session."""

import dataclasses
import math
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import ChoiceRequest, Update
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import Transcript, View
from radixlm.server.limits import MAX_RID_CHARS
from radixlm.server.route import Row
from radixlm.server.services import Services
from radixlm.server.sessions import SessionParams, Sessions
from radixlm.server.tokens import token_ids


class RecordingView:
    """Another view that, at the end, writes the only choice down as a turn of a session."""

    def __init__(self, view: View, sessions: Sessions, session: str) -> None:
        self._view = view
        self._sessions = sessions
        self._session = session

    def events(self, transcript: Transcript, update: Update) -> Iterable[Any]:
        return self._view.events(transcript, update)

    def closing(self, transcripts: Sequence[Transcript]) -> Iterable[Any]:
        self._record(transcripts)
        return self._view.closing(transcripts)

    def whole(self, transcripts: Sequence[Transcript]) -> Any:
        self._record(transcripts)
        return self._view.whole(transcripts)

    def _record(self, transcripts: Sequence[Transcript]) -> None:
        for one in transcripts:
            self._sessions.finish(self._session, one.choice.rid, one.token_ids)


class OpenBody(msgspec.Struct, frozen=True):
    """A new session. `capacity_of_str_len` is SGLang's and limits nothing there either."""

    capacity_of_str_len: int
    session_id: str | None = None
    streaming: bool | None = None
    timeout: float | None = None


class CloseBody(msgspec.Struct, frozen=True):
    """The session to forget."""

    session_id: str


_open_decoder, _close_decoder = msgspec.json.Decoder(OpenBody), msgspec.json.Decoder(CloseBody)


@asynccontextmanager
async def turn(
    services: Services, params: SessionParams, requests: list[ChoiceRequest]
) -> AsyncIterator[ChoiceRequest]:
    """The one request of `requests` as the next turn of its session; one that is not recorded is forgotten at the end.

    RequestError for more than one request, and as `Sessions.begin`.
    """
    if len(requests) > 1:
        raise RequestError("A turn of a session is one prompt with n = 1", "session_params")
    (request,) = requests
    rid = request.rid or uuid.uuid4().hex
    if request.text is not None:
        (tokens,) = await token_ids(services, [request.text], request.add_special_tokens)
    else:
        tokens = request.input_ids or []
    tokenizer = services.manager.tokenizer
    bos = tokenizer.bos_token_id if tokenizer is not None else None
    prompt, replaced = services.sessions.begin(params, rid, tokens, bos)
    for gone in replaced:
        services.manager.abort(gone)
    try:
        yield dataclasses.replace(request, rid=rid, text=None, input_ids=prompt.tolist())
    finally:
        services.sessions.finish(params.id, rid, None)


async def handle_open(exchange: Exchange) -> None:
    body = decode(await exchange.body(), _open_decoder)
    if body.session_id and len(body.session_id) > MAX_RID_CHARS:
        raise RequestError(f"session_id is longer than {MAX_RID_CHARS} characters", "session_id")
    if body.capacity_of_str_len < 0:
        raise RequestError("capacity_of_str_len must be at least 0", "capacity_of_str_len")
    if body.timeout is not None and not 0 < body.timeout < math.inf:
        raise RequestError("timeout must be a number of seconds above 0", "timeout")
    id_ = exchange.services.sessions.open(body.session_id, bool(body.streaming), body.timeout)
    await exchange.json(id_)


async def handle_close(exchange: Exchange) -> None:
    """Always 200; requests of the session that still run are aborted."""
    body = decode(await exchange.body(), _close_decoder)
    for rid in exchange.services.sessions.close(body.session_id):
        exchange.services.manager.abort(rid)
    await exchange.json(None)


ROWS = (
    Row("/open_session", ("GET", "POST"), handle_open, "user", body=OpenBody),
    Row("/close_session", ("GET", "POST"), handle_close, "user", body=CloseBody),
)

"""/v1/responses: create (whole, streamed or in the background), retrieve, cancel."""

import asyncio
import uuid
from dataclasses import replace
from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.base.log import get
from radixlm.frontend.choice import ChoiceRequest
from radixlm.server.conversation import Conversation
from radixlm.server.dialogue import dialogue
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import Following, Transcript, generate, refuse_unless_serving, time_limit_s
from radixlm.server.native import check_rid
from radixlm.server.openai.common import namespace_of, own_names
from radixlm.server.openai.logprobs import ChatLogprobs
from radixlm.server.openai.responses.body import (
    REFUSED,
    ResponsesBody,
    kwargs_of,
    logprobs_of,
    refuse_unsupported,
    sampling_params,
    tools_of,
    turns_of,
)
from radixlm.server.openai.responses.reply import Reply
from radixlm.server.openai.responses.store import ResponseStore, Stored
from radixlm.server.openai.responses.view import ResponseView, fill
from radixlm.server.parsing import Parsers
from radixlm.server.route import Row
from radixlm.server.services import Services

log = get(__name__)
_decoder = msgspec.json.Decoder(ResponsesBody)


class Responses:
    """The routes of one server, and what they remember."""

    def __init__(self) -> None:
        self._store = ResponseStore()

    def rows(self) -> tuple[Row, ...]:
        return (
            Row("/v1/responses", ("POST",), self.create, "user", "responses", ResponsesBody, "generation"),
            Row("/v1/responses/{response_id}", ("GET",), self.retrieve, "user", "responses"),
            Row("/v1/responses/{response_id}/cancel", ("POST",), self.cancel, "user", "responses"),
        )

    async def create(self, exchange: Exchange) -> None:
        exchange.require_json()
        raw = await exchange.body()
        REFUSED.check(raw)
        body = decode(raw, _decoder)
        refuse_unsupported(body)
        services, stream = exchange.services, bool(body.stream)
        before = self._history(services, body)
        turns = before + turns_of(body.input)
        instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
        with own_names("max_output_tokens", "input"):
            identity = check_rid(body.request_id) or f"resp_{uuid.uuid4().hex}"
            conversation = Conversation(
                messages=instructions + turns, kwargs=kwargs_of(body), tools=tools_of(body, services)
            )
            params = sampling_params(body, services)
            request, parsers = await dialogue(
                services,
                conversation,
                params,
                stream,
                identity,
                namespace_of(body),
                body.priority,
                processor=body.custom_logit_processor or None,
            )
            request = replace(request, logprobs=logprobs_of(body))
            stored = services.enable_response_store and body.store is not False
            reply = Reply(services, body, identity, stored)
            if request.logprobs is not None:
                reply.logprobs = ChatLogprobs.of(services, request)
            if body.background:
                await self._start(exchange, request, parsers, Stored(reply, turns))
                return

            def ended(final: Reply) -> None:
                if stored:
                    self._store.add(Stored(final, turns))

            view = ResponseView(reply, parsers, ended)
            await exchange.while_connected(generate(exchange, [request], view, stream))

    async def retrieve(self, exchange: Exchange) -> None:
        await exchange.json(self._asked(exchange).reply.json())

    async def cancel(self, exchange: Exchange) -> None:
        """Returns once the response has ended; one that had ended before stays as it is."""
        stored = self._asked(exchange)
        if stored.work is None or stored.choice is None:
            raise RequestError("Only a response made in the background can be cancelled", "response_id")
        if not stored.work.done():
            stored.cancelled = True
            stored.choice.abort()
            await asyncio.wait({stored.work})
        await exchange.json(stored.reply.json())

    def _asked(self, exchange: Exchange) -> Stored:
        _need_store(exchange.services, "Retrieving and cancelling responses", "response_id")
        return self._store.get(exchange.scope["path_params"]["response_id"])

    def _history(self, services: Services, body: ResponsesBody) -> list[dict[str, Any]]:
        if body.background:
            _need_store(services, "background", "background")
            if body.store is False:
                raise RequestError("background needs store", "store")
        if not body.previous_response_id:
            return []
        _need_store(services, "previous_response_id", "previous_response_id")
        return self._store.get(body.previous_response_id, "previous_response_id").history()

    async def _start(self, exchange: Exchange, request: ChoiceRequest, parsers: Parsers, stored: Stored) -> None:
        """Answer at once and go on in the background; what can be refused is refused before."""
        services, limit_s = exchange.services, time_limit_s(exchange)
        refuse_unless_serving(services)
        [stored.choice] = await services.manager.submit_all([replace(request, stream=False)])
        stored.reply.status = "queued"
        stored.work = asyncio.create_task(_work(services, request, parsers, stored, limit_s))
        self._store.add(stored)
        await exchange.json(stored.reply.json())


def _need_store(services: Services, what: str, field: str) -> None:
    if not services.enable_response_store:
        raise RequestError(f"{what} needs a server with --enable-response-store", field)


async def _work(
    services: Services, request: ChoiceRequest, parsers: Parsers, stored: Stored, limit_s: float | None
) -> None:
    """Follow a response made in the background to its end. Whatever goes wrong is in the reply."""
    assert stored.choice is not None
    transcript, reply = Transcript(0, stored.choice), stored.reply
    try:
        async with asyncio.timeout(limit_s):
            following = Following(services, [request], [transcript])
            while await following.next():
                reply.status = "in_progress"
        fill(reply, parsers, transcript, stored.cancelled)
    except TimeoutError:
        reply.fail(f"Request timeout reached: it has not ended within {limit_s:g} s.")
    except Exception:
        log.exception("%s: a response in the background failed", reply.id)
        reply.fail("Internal server error: the cause is in the server's log")
    finally:
        stored.choice.abort()

"""SGLang's own routes for vectors, /encode and /classify: two names of one thing."""

from collections.abc import Sequence
from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import ChoiceRequest
from radixlm.server.answer import answer
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import Transcript, generate
from radixlm.server.native import check_rid
from radixlm.server.pooled.common import (
    REFUSED,
    WholeView,
    check_count,
    check_dimensions,
    pooled,
    pooled_pairs,
    pooling_of,
    prompts_of,
    shortened,
    vector_of,
)
from radixlm.server.refused import Refusals
from radixlm.server.route import Row
from radixlm.server.services import Manager


class EncodeBody(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of /encode and /classify that work. Unknown keys are ignored, as in SGLang."""

    text: str | list[str | list[str]] | None = None
    input_ids: list[int | list[int]] | None = None
    rid: str | list[str] | None = None
    dimensions: int | None = None
    is_cross_encoder_request: bool | None = None
    return_prompt_token_ids: bool | None = None
    priority: int | None = None


REFUSALS = Refusals(REFUSED)

_decoder = msgspec.json.Decoder(EncodeBody)


def _rids(rid: str | list[str] | None, count: int, batch: bool) -> list[str | None]:
    if isinstance(rid, list):
        if len(rid) != count or not batch:
            raise RequestError(f"rid has {len(rid)} items for {count if batch else 'one'} prompts", "rid")
        return [check_rid(one) for one in rid]
    if rid and batch:
        return [check_rid(f"{rid}_{index}") for index in range(count)]
    return [check_rid(rid)] * count


def _pairs(text: Any) -> list[tuple[str, str]] | None:
    """Pairs of texts for a cross-encoder, None where `text` is something else."""
    if not isinstance(text, list) or not any(isinstance(one, list) for one in text):
        return None
    check_count(len(text), "text")
    for place, pair in enumerate(text):
        if not isinstance(pair, list) or len(pair) != 2:
            raise RequestError(f"text[{place}] must be a pair of texts, as the others are", "text")
    return [(first, second) for first, second in text]


async def requests_of(manager: Manager, body: EncodeBody) -> tuple[list[ChoiceRequest], bool]:
    """A request for each prompt, and whether they are a batch."""
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("Exactly one of text and input_ids must be given", "text")
    pairs = _pairs(body.text)
    if pairs is not None:
        return await pooled_pairs(manager, pairs, _rids(body.rid, len(pairs), True), body.priority), True
    if body.is_cross_encoder_request:
        raise RequestError("text must be a list of pairs of texts with is_cross_encoder_request", "text")
    field = "text" if body.input_ids is None else "input_ids"
    prompts, batch = prompts_of(body.text if body.input_ids is None else body.input_ids, field)
    rids = _rids(body.rid, len(prompts), batch)
    return [pooled(prompt, rid, body.priority) for prompt, rid in zip(prompts, rids, strict=True)], batch


def shown(transcript: Transcript, normalize: bool, dimensions: int | None, weight_version: str) -> dict[str, Any]:
    """One prompt's answer."""
    vector = shortened(vector_of(transcript), dimensions, normalize)
    meta = answer(transcript.choice, "", [], 0, weight_version)["meta_info"]
    return {"embedding": vector.tolist(), "meta_info": meta}


async def handle_encode(exchange: Exchange) -> None:
    raw = await exchange.body()
    REFUSALS.check(raw)
    body = decode(raw, _decoder)
    services = exchange.services
    dimensions = check_dimensions(body.dimensions, services.manager)
    requests, batch = await requests_of(services.manager, body)
    normalize = pooling_of(services.manager).normalize

    def shape(transcripts: Sequence[Transcript]) -> Any:
        answers = [shown(one, normalize, dimensions, services.weight_version) for one in transcripts]
        if body.return_prompt_token_ids:
            for one, transcript in zip(answers, transcripts, strict=True):
                one["prompt_token_ids"] = transcript.choice.prompt_ids
        return answers if batch else answers[0]

    await exchange.while_connected(generate(exchange, requests, WholeView(shape), False))


ROWS = tuple(
    Row(path, ("POST", "PUT"), handle_encode, "user", body=EncodeBody, task="pooling")
    for path in ("/encode", "/classify")
)

"""POST /v1/rerank: documents by how well they answer a query, as a cross-encoder or a yes-or-no reranker sees it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.frontend import checks
from radixlm.frontend.choice import ChoiceRequest
from radixlm.server.answer import answer
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import Transcript, generate
from radixlm.server.names import renamed, served_name
from radixlm.server.pooled.common import WholeView, check_count, pooled_pairs, vector_of
from radixlm.server.pooled.score import Scoring, labelled
from radixlm.server.route import Row
from radixlm.server.services import Services

YES_OR_NO = 'answer can only be "yes" or "no"'  # in the chat templates of Qwen3-Reranker and its kind
_SHARES = Scoring(softmax=True, temperature=1.0)


class RerankBody(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of /v1/rerank. A text may also be a list of parts of type `text`."""

    query: str | list[dict[str, Any]]
    documents: list[str | list[dict[str, Any]]]
    instruct: str | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    model: str | None = None


_decoder = msgspec.json.Decoder(RerankBody)


def _text(value: str | list[dict[str, Any]], field: str) -> str:
    if isinstance(value, list):
        if not all(part.get("type") == "text" and isinstance(part.get("text"), str) for part in value):
            raise RequestError(f"{field} may have parts of type text only", field)
        value = "".join(part["text"] for part in value)
    if not value.strip():
        raise RequestError(f"{field} is empty", field)
    return value


async def _requests(services: Services, query: str, documents: list[str], instruct: str | None) -> list[ChoiceRequest]:
    pooling = services.manager.card.pooling
    if pooling is None:
        return await asyncio.to_thread(_yes_or_no, services, query, documents, instruct)
    if instruct is not None:
        raise RequestError("instruct needs a reranker with a chat template; put it into the query", "instruct")
    if len(pooling.labels) != 1:
        what = f"tells {len(pooling.labels)} classes apart" if pooling.labels else "makes embeddings"
        raise RequestError(f"/v1/rerank needs a model that gives one score, and this server's {what}")
    return await pooled_pairs(services.manager, [(query, document) for document in documents], [None] * len(documents))


def _yes_or_no(services: Services, query: str, documents: list[str], instruct: str | None) -> list[ChoiceRequest]:
    """What a generating reranker is asked: the template says how, its next token is the answer."""
    template, tokenizer = services.template, services.manager.tokenizer
    if template is None or YES_OR_NO not in template.source or tokenizer is None:
        raise RequestError(
            "/v1/rerank needs a cross-encoder, or a reranker whose chat template asks for yes or no (--chat-template); "
            "this server's model generates text"
        )
    labels = tuple(_single(tokenizer.encode(word, False), word) for word in ("yes", "no"))
    kwargs: dict[str, Any] = {} if instruct is None else {"instruct": instruct}
    return [
        labelled(
            template.render([{"role": "user", "content": query}, {"role": "user", "content": document}], **kwargs),
            labels,
        )
        for document in documents
    ]


def _single(ids: list[int], word: str) -> int:
    if len(ids) != 1:
        raise RequestError(f"/v1/rerank: this model's vocabulary has no single token for {word!r}")
    return ids[0]


async def handle_rerank(exchange: Exchange) -> None:
    exchange.require_json()
    body = decode(await exchange.body(), _decoder)
    services = exchange.services
    served_name(services, body.model)
    if body.top_n is not None:
        checks.integer(1)("top_n", body.top_n)
    query = _text(body.query, "query")
    check_count(len(body.documents), "documents")
    documents = [_text(document, f"documents[{place}]") for place, document in enumerate(body.documents)]
    requests = await _requests(services, query, documents, body.instruct)
    generates = services.manager.card.pooling is None

    def score(transcript: Transcript) -> float:
        return float((_SHARES.likelihoods if generates else vector_of)(transcript)[0])

    def shape(transcripts: Sequence[Transcript]) -> Any:
        scored = sorted(((score(one), one) for one in transcripts), key=lambda pair: (-pair[0], pair[1].index))
        return [_result(services, value, one, body) for value, one in scored[: body.top_n]]

    with renamed({"text": "documents", "input_ids": "documents"}):
        await exchange.while_connected(generate(exchange, requests, WholeView(shape), False))


def _result(services: Services, score: float, transcript: Transcript, body: RerankBody) -> dict[str, Any]:
    document = body.documents[transcript.index]
    meta = answer(transcript.choice, "", [], 0, services.weight_version)["meta_info"]
    shown = {} if body.return_documents is False else {"document": document}
    return {"score": score, **shown, "index": transcript.index, "meta_info": meta}


ROWS = (Row("/v1/rerank", ("POST", "PUT"), handle_rerank, "user", "openai", body=RerankBody),)

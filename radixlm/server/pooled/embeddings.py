"""POST /v1/embeddings, as OpenAI's clients know it."""

import base64
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from radixlm.base.errors import RequestError
from radixlm.protocol.arrays import F32
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import Transcript, generate
from radixlm.server.names import renamed, served_name
from radixlm.server.native import check_rid
from radixlm.server.pooled.common import (
    REFUSED,
    WholeView,
    check_dimensions,
    pooled,
    pooling_of,
    prompts_of,
    shortened,
    usage,
    vector_of,
)
from radixlm.server.refused import Refusals
from radixlm.server.route import Row


class EmbeddingsBody(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of /v1/embeddings that work. Unknown keys are ignored."""

    input: str | list[Any]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    rid: str | None = None
    priority: int | None = None


REFUSALS = Refusals(REFUSED)

_decoder = msgspec.json.Decoder(EmbeddingsBody)


def _written(vector: F32, encoding: str | None) -> Any:
    """An embedding as numbers, or as base64 of little-endian float32."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    return vector.tolist()


async def handle_embeddings(exchange: Exchange) -> None:
    exchange.require_json()
    raw = await exchange.body()
    REFUSALS.check(raw)
    body = decode(raw, _decoder)
    services = exchange.services
    served_name(services, body.model)
    pooling = pooling_of(services.manager)
    dimensions = check_dimensions(body.dimensions, services.manager)
    if isinstance(body.input, list) and any(isinstance(one, dict) for one in body.input):
        raise RequestError("input of several media is not supported: give texts or token ids", "input")
    prompts, _ = prompts_of(body.input, "input")
    rid = check_rid(body.rid)
    requests = [pooled(prompt, rid if len(prompts) == 1 else None, body.priority) for prompt in prompts]

    def shape(transcripts: Sequence[Transcript]) -> Any:
        vectors = [shortened(vector_of(one), dimensions, pooling.normalize) for one in transcripts]
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _written(vector, body.encoding_format)}
                for index, vector in enumerate(vectors)
            ],
            "model": services.model_path,
            "usage": usage(transcripts),
        }

    with renamed({"text": "input", "input_ids": "input"}):
        await exchange.while_connected(generate(exchange, requests, WholeView(shape), False))


ROWS = (Row("/v1/embeddings", ("POST",), handle_embeddings, "user", "openai", body=EmbeddingsBody, task="pooling"),)

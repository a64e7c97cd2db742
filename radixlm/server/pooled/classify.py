"""POST /v1/classify: which of its classes a model sees in a text."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import Transcript, generate
from radixlm.server.names import renamed, served_name
from radixlm.server.native import check_rid
from radixlm.server.pooled.common import WholeView, pooled, pooling_of, prompts_of, softmax, usage, vector_of
from radixlm.server.route import Row


class ClassifyBody(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of /v1/classify. Unknown keys are ignored."""

    input: str | list[Any]
    model: str | None = None
    rid: str | None = None
    priority: int | None = None


_decoder = msgspec.json.Decoder(ClassifyBody)


async def handle_classify(exchange: Exchange) -> None:
    exchange.require_json()
    body = decode(await exchange.body(), _decoder)
    services = exchange.services
    model, labels = served_name(services, body.model), pooling_of(services.manager).labels
    if not labels:
        raise RequestError("this server's model makes embeddings and knows no classes; use /v1/embeddings")
    prompts, _ = prompts_of(body.input, "input")
    rid = check_rid(body.rid)
    requests = [pooled(prompt, rid if len(prompts) == 1 else None, body.priority) for prompt in prompts]

    def shape(transcripts: Sequence[Transcript]) -> Any:
        return {
            "id": f"classify-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": model,
            "data": [_class(one, labels) for one in transcripts],
            "usage": usage(transcripts),
        }

    with renamed({"text": "input", "input_ids": "input"}):
        await exchange.while_connected(generate(exchange, requests, WholeView(shape), False))


def _class(transcript: Transcript, labels: Sequence[str]) -> dict[str, Any]:
    probabilities = softmax(vector_of(transcript))
    return {
        "index": transcript.index,
        "label": labels[int(probabilities.argmax())],
        "probs": probabilities.tolist(),
        "num_classes": len(labels),
    }


ROWS = (Row("/v1/classify", ("POST",), handle_classify, "user", "openai", body=ClassifyBody, task="pooling"),)

"""POST /v1/score: how likely labels are to follow each item, or what a classifier says of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from radixlm.base.errors import RequestError
from radixlm.frontend import checks
from radixlm.frontend.choice import ChoiceRequest
from radixlm.protocol.arrays import F32
from radixlm.protocol.extras import OUTPUTS_ONLY, LogprobOptions
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import Transcript, generate
from radixlm.server.limits import MAX_LOGPROB_TOKEN_IDS
from radixlm.server.names import renamed, served_name
from radixlm.server.pooled.common import (
    REFUSED,
    Prompt,
    WholeView,
    check_count,
    pooled,
    pooled_pairs,
    softmax,
    usage,
    vector_of,
)
from radixlm.server.refused import Refusals, Refused
from radixlm.server.route import Row
from radixlm.server.services import Manager


class ScoreBody(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of /v1/score that work. `query` goes before each item, with `item_first` behind it."""

    items: str | list[str | list[int]]
    query: str | list[int] | None = None
    label_token_ids: list[int | list[int]] | None = None
    apply_softmax: bool | None = None
    temperature: float | None = None
    item_first: bool | None = None
    model: str | None = None


MIN_TEMPERATURE = 0.001

REFUSALS = Refusals(
    [
        *REFUSED,
        *(Refused(name) for name in ("return_token_logprobs", "score_extraction_token")),
        *(Refused(name) for name in ("query_embed_overrides", "item_embed_overrides")),
    ]
)

_decoder = msgspec.json.Decoder(ScoreBody)


@dataclass(frozen=True)
class Scoring:
    """How numbers become scores: with `softmax` they are made to sum to 1, after division by `temperature`."""

    softmax: bool
    temperature: float

    @staticmethod
    def of(apply_softmax: bool | None, temperature: float | None) -> "Scoring":
        value = 1.0 if temperature is None else checks.number(MIN_TEMPERATURE, 1e6)("temperature", temperature)
        if value != 1.0 and not apply_softmax:
            raise RequestError("temperature has a meaning only with apply_softmax", "temperature")
        return Scoring(bool(apply_softmax), value)

    def of_transcript(self, transcript: Transcript, generates: bool) -> F32:
        """float32 [labels or classes], by what the model does."""
        return self.likelihoods(transcript) if generates else self.classes(transcript)

    def likelihoods(self, transcript: Transcript) -> F32:
        """Of the labels of a request made by `labelled`, from the log probabilities that came with its one token."""
        values = next((one.output.chosen_values[0] for one in transcript.extras if one.output is not None), None)
        if values is None:
            raise RequestError("the engine sent no log probabilities", status=500)
        scores: F32 = np.asarray(values, np.float32)
        return softmax(scores, self.temperature) if self.softmax else np.exp(scores)

    def classes(self, transcript: Transcript) -> F32:
        """Of a classifier's classes."""
        scores = vector_of(transcript)
        return softmax(scores, self.temperature) if self.softmax else scores


def joined(query: str | list[int] | None, items: str | list[str | list[int]], item_first: bool) -> list[Prompt]:
    """One prompt per item, all of text or all of ids. RequestError names what does not fit."""
    listed = [items] if isinstance(items, str) else items
    check_count(len(listed), "items")
    kind = type(listed[0] if query is None else query)
    for place, item in enumerate(listed):
        if not isinstance(item, kind):
            raise RequestError(
                f"items[{place}] must be {'text' if kind is str else 'token ids'}, as the rest is", "items"
            )
    before: Any = query if query is not None else kind()
    return [item + before if item_first else before + item for item in listed]


def label_lists(label_token_ids: list[int | list[int]] | None, items: int, vocab_size: int) -> list[tuple[int, ...]]:
    """The labels of each item: the same for all, or a list for each."""
    field = "label_token_ids"
    if not label_token_ids:
        raise RequestError("label_token_ids is needed: the ids of the tokens to score", field)
    nested = [one for one in label_token_ids if isinstance(one, list)]
    if nested and (len(nested) != len(label_token_ids) or len(nested) != items):
        raise RequestError(f"{field} must be one list of token ids, or one for each of the {items} items", field)
    lists: list[Any] = nested or [label_token_ids]
    for labels in lists:
        if not 1 <= len(labels) <= MAX_LOGPROB_TOKEN_IDS:
            raise RequestError(f"{field} must have 1 to {MAX_LOGPROB_TOKEN_IDS} ids, got {len(labels)}", field)
    checked = [tuple(checks.token_ids(field, labels, vocab_size)) for labels in lists]
    return checked if nested else checked * items


def labelled(prompt: Prompt, labels: tuple[int, ...]) -> ChoiceRequest:
    """A request for the log probabilities of `labels` right after `prompt`."""
    return ChoiceRequest(
        text=prompt if isinstance(prompt, str) else None,
        input_ids=None if isinstance(prompt, str) else prompt,
        sampling_params={"max_new_tokens": 1, "temperature": 0.0},
        logprobs=LogprobOptions(OUTPUTS_ONLY, token_ids=labels),
    )


async def requests_of(manager: Manager, body: ScoreBody) -> list[ChoiceRequest]:
    """One request per item: of a model that generates, a cross-encoder or another classifier."""
    card = manager.card
    prompts = joined(body.query, body.items, bool(body.item_first))
    if card.pooling is None:
        labels = label_lists(body.label_token_ids, len(prompts), card.vocab_size)
        return [labelled(prompt, own) for prompt, own in zip(prompts, labels, strict=True)]
    if not card.pooling.labels:
        raise RequestError("this server's model makes embeddings and scores nothing; use /v1/embeddings")
    if body.label_token_ids:
        raise RequestError(
            f"label_token_ids: this model scores its own {len(card.pooling.labels)} classes", "label_token_ids"
        )
    if card.encoder is None or not isinstance(body.query, str):
        return [pooled(prompt) for prompt in prompts]
    items = [body.items] if isinstance(body.items, str) else body.items
    pairs = [(body.query, str(item)) for item in items]
    if body.item_first:
        pairs = [(second, first) for first, second in pairs]
    return await pooled_pairs(manager, pairs, [None] * len(pairs))


async def handle_score(exchange: Exchange) -> None:
    exchange.require_json()
    raw = await exchange.body()
    REFUSALS.check(raw)
    body = decode(raw, _decoder)
    services = exchange.services
    model = served_name(services, body.model)
    scoring = Scoring.of(body.apply_softmax, body.temperature)
    requests = await requests_of(services.manager, body)
    generates = services.manager.card.pooling is None

    def shape(transcripts: Sequence[Transcript]) -> Any:
        return {
            "object": "scoring",
            "scores": [scoring.of_transcript(one, generates).tolist() for one in transcripts],
            "model": model,
            "usage": usage(transcripts),
            "pooled_hidden_states": None,
            "token_logprobs": None,
        }

    with renamed({"text": "items", "input_ids": "items", "token_ids_logprob": "label_token_ids"}):
        await exchange.while_connected(generate(exchange, requests, WholeView(shape), False))


ROWS = (Row("/v1/score", ("POST",), handle_score, "user", "openai", body=ScoreBody),)

"""Vectors and scores for Python programs: what the HTTP routes answer, without HTTP. Knows no process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import ChoiceRequest, Updates
from radixlm.server.generation import Transcript, error_of
from radixlm.server.pooled import encode, score
from radixlm.server.pooled.common import check_dimensions, pooling_of
from radixlm.server.services import Manager

B = TypeVar("B", encode.EncodeBody, score.ScoreBody)


@dataclass(frozen=True)
class ScoreResult:
    """`scores[i][j]` is item i's score of label j. The last two are SGLang's, and always None here."""

    scores: list[list[float]]
    prompt_tokens: int
    pooled_hidden_states: None = None
    token_logprobs: None = None


def body_of(kind: type[B], **fields: Any) -> B:
    """Arguments as a route's body; RequestError names the one of a wrong type."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise RequestError(str(error)) from None


async def vectors(manager: Manager, body: encode.EncodeBody, weight_version: str) -> Any:
    """What /encode answers: a dict with `embedding` and `meta_info`, or a list of them."""
    normalize = pooling_of(manager).normalize
    dimensions = check_dimensions(body.dimensions, manager)
    requests, batch = await encode.requests_of(manager, body)
    ended = await _ended(manager, requests)
    answers = [encode.shown(one, normalize, dimensions, weight_version) for one in ended]
    return answers if batch else answers[0]


async def scores(manager: Manager, body: score.ScoreBody) -> ScoreResult:
    """What /v1/score answers."""
    scoring = score.Scoring.of(body.apply_softmax, body.temperature)
    ended = await _ended(manager, await score.requests_of(manager, body))
    rows = [scoring.of_transcript(one, manager.card.pooling is None).tolist() for one in ended]
    return ScoreResult(rows, sum(one.prompt_tokens for one in ended))


async def _ended(manager: Manager, requests: Sequence[ChoiceRequest]) -> list[Transcript]:
    """The requests' choices, run to their ends; RequestError for the first that failed."""
    choices = await manager.submit_all(list(requests))
    try:
        transcripts = [Transcript(index, choice) for index, choice in enumerate(choices)]
        updates = Updates(choices)
        while batch := await updates.next():
            for index, update in batch:
                transcripts[index].take(update)
                error = error_of(transcripts[index].reason)
                if error is not None:
                    raise error
        return transcripts
    finally:
        for choice in choices:
            choice.abort()

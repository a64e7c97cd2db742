"""What the routes of vectors and scores share: prompts in their four forms, vectors, usage, a view. Knows no route."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from radixlm.base.errors import RequestError
from radixlm.config.card import PoolingCard
from radixlm.frontend import checks
from radixlm.frontend.choice import ChoiceRequest, Update
from radixlm.frontend.prompts import by_size, check_unicode
from radixlm.frontend.task import refuse_other_task
from radixlm.protocol.arrays import F32
from radixlm.server.generation import Transcript
from radixlm.server.limits import MAX_CHOICES
from radixlm.server.native import id_prompts
from radixlm.server.refused import Refused
from radixlm.server.services import Manager

Prompt = str | list[int]
_NOTHING_NEW = {"max_new_tokens": 0, "temperature": 0.0}

REFUSED = tuple(
    Refused(name)
    for name in (
        *("image_data", "video_data", "audio_data", "modalities", "lora_path", "return_pooled_hidden_states"),
        *("embed_override_token_id", "embed_overrides"),
    )
)


class WholeView:
    """A view of an answer that is never streamed."""

    def __init__(self, shape: Callable[[Sequence[Transcript]], Any]) -> None:
        """`shape` makes the answer's JSON."""
        self._shape = shape

    def events(self, transcript: Transcript, update: Update) -> Iterable[Any]:
        return ()

    def closing(self, transcripts: Sequence[Transcript]) -> Iterable[Any]:
        return ()

    def whole(self, transcripts: Sequence[Transcript]) -> Any:
        return self._shape(transcripts)


def prompts_of(value: Any, field: str) -> tuple[list[Prompt], bool]:
    """Prompts out of a text, texts, token ids or lists of token ids, and whether they came as a batch.

    RequestError names the field, and the place of an empty text.
    """
    if isinstance(value, str):
        value, batch = [value], False
    elif isinstance(value, list) and any(isinstance(one, str) for one in value):
        batch = True
    elif isinstance(value, list):
        prompts, batch = id_prompts(value, field)
        check_count(len(prompts), field)
        return [*prompts], batch
    else:
        raise RequestError(f"{field} must be a text, texts, token ids or lists of token ids", field)
    check_count(len(value), field)
    for place, text in enumerate(value):
        if not isinstance(text, str):
            raise RequestError(f"{field} mixes texts with something else", field)
        if not text.strip():
            raise RequestError(f"{field}[{place}] is empty" if batch else f"{field} is empty", field)
    return list(value), batch


def check_count(count: int, field: str) -> None:
    if not count:
        raise RequestError(f"{field} must not be an empty list", field)
    if count > MAX_CHOICES:
        raise RequestError(f"{field} has {count} entries; at most {MAX_CHOICES} are taken", field)


def pooled(prompt: Prompt, rid: str | None = None, priority: int | None = None) -> ChoiceRequest:
    """A request for a prompt's vector."""
    text, ids = (prompt, None) if isinstance(prompt, str) else (None, prompt)
    return ChoiceRequest(
        text=text, input_ids=ids, sampling_params=_NOTHING_NEW, rid=rid, priority=priority, pooled=True
    )


async def pooled_pairs(
    manager: Manager, pairs: Sequence[tuple[str, str]], rids: Sequence[str | None], priority: int | None = None
) -> list[ChoiceRequest]:
    """Requests for the vectors of pairs of texts, as a cross-encoder reads them."""
    tokenizer = manager.tokenizer
    if tokenizer is None:
        raise RequestError("pairs of texts need a tokenizer, and this server runs without one", "text")

    for pair in pairs:
        for text in pair:
            check_unicode(text)

    encoded = await by_size(
        lambda: [tokenizer.encode_pair(first, second) for first, second in pairs],
        sum(len(first) + len(second) for first, second in pairs),
    )
    encoder = manager.card.encoder
    apart = encoder is not None and encoder.pair_separated
    return [
        ChoiceRequest(
            input_ids=ids,
            sampling_params=_NOTHING_NEW,
            rid=rid,
            priority=priority,
            pooled=True,
            second_at=second_at if apart else None,
        )
        for (ids, second_at), rid in zip(encoded, rids, strict=True)
    ]


def vector_of(transcript: Transcript) -> F32:
    """The vector of a choice that has ended: float32 [D]."""
    for extras in transcript.extras:
        if extras.embedding is not None:
            vector: F32 = extras.embedding
            return vector
    raise RequestError("the engine sent no vector", status=500)


def usage(transcripts: Sequence[Transcript]) -> dict[str, Any]:
    prompt_tokens = sum(one.prompt_tokens for one in transcripts)
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def pooling_of(manager: Manager) -> PoolingCard:
    """How the server's model pools; RequestError when it generates."""
    refuse_other_task(manager.card, pooled=True)
    assert manager.card.pooling is not None
    return manager.card.pooling


def check_dimensions(dimensions: Any, manager: Manager) -> int | None:
    """How many elements of an embedding are wanted, None for all; RequestError says why it cannot be that many."""
    if dimensions is None:
        return None
    pooling, most = pooling_of(manager), manager.card.outputs
    if not pooling.matryoshka or pooling.labels:
        raise RequestError(
            "dimensions: this model's vectors were not trained to be cut short; if they were, start the server with "
            """--json-model-override-args '{"is_matryoshka": true}'""",
            "dimensions",
        )
    wanted: int = checks.integer(1, most)("dimensions", dimensions)
    if pooling.dimensions and wanted not in pooling.dimensions:
        known = ", ".join(map(str, pooling.dimensions))
        raise RequestError(f"dimensions must be one of {known} with this model, got {wanted}", "dimensions")
    return wanted


def shortened(vector: F32, dimensions: int | None, normalize: bool) -> F32:
    """The first `dimensions` elements, of length 1 again with `normalize` (arXiv 2205.13147)."""
    if dimensions is None or dimensions == len(vector):
        return vector
    short: F32 = vector[:dimensions]
    length = float(np.linalg.norm(short))
    return short / length if normalize and length > 0 else short


def softmax(scores: F32, temperature: float = 1.0) -> F32:
    """In float64, so that neither the lowest score nor the lowest temperature makes a number that is none."""
    exponents = scores.astype(np.float64) / temperature
    powers = np.exp(exponents - exponents.max())
    shares: F32 = (powers / powers.sum()).astype(np.float32)
    return shares

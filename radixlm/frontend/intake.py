"""From a request as it came to one that the scheduler can run: tokens, parameters, lengths. Keeps no request."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from radixlm.base.errors import RequestError
from radixlm.config.card import ModelCard
from radixlm.frontend import checks, validate
from radixlm.frontend.choice import ChoiceRequest
from radixlm.frontend.lengths import Limits, fit
from radixlm.loader.tokenizer import Tokenizer
from radixlm.protocol.messages import TextOptions
from radixlm.protocol.sampling import SamplingParams

_INLINE_CHARS = 4096  # about 2 ms of tokenizing; more than that goes to a thread


class Encoder(Protocol):
    """What makes token ids (loader.tokenizer.Tokenizer)."""

    @property
    def bos_token_id(self) -> int | None: ...
    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]: ...


@dataclass(frozen=True)
class Prepared:
    """A request that may run. `truncated_tokens` were taken off the prompt's end.

    `stream_interval` None leaves it to the server how many tokens a message of a stream has.
    """

    prompt_ids: list[int]
    sampling: SamplingParams
    text: TextOptions
    truncated_tokens: int
    stream_interval: int | None = None


class Intake:
    """Checks and tokenizes. `tokenizer` None: prompts come as ids, and nothing that needs text is served."""

    def __init__(self, card: ModelCard, tokenizer: Tokenizer | None, random_seed: int | None = None) -> None:
        """`random_seed` makes the seeds of requests that bring none repeatable, in order of arrival."""
        self._card = card
        self._tokenizer = tokenizer
        self._draw = random.Random(random_seed)

    async def prepare(self, requests: Sequence[ChoiceRequest], limits: Limits) -> list[Prepared]:
        """All of `requests`, in order; RequestError for the first that must be refused."""
        parsed = [self._parse(request) for request in requests]
        prompts = await self._prompts(requests)
        return [
            _fitted(request, sampling, ids, limits)
            for request, sampling, ids in zip(requests, parsed, prompts, strict=True)
        ]

    def _parse(self, request: ChoiceRequest) -> validate.Sampling:
        if (request.text is None) == (request.input_ids is None):
            raise RequestError("Exactly one of text and input_ids must be given.", "text")
        defaults = self._card.generation if request.apply_generation_defaults else None
        sampling = validate.parse(request.sampling_params, self._card.vocab_size, defaults, self._draw)
        if self._tokenizer is None:
            self._refuse_text(request, sampling.params)
        return sampling

    def _refuse_text(self, request: ChoiceRequest, params: SamplingParams) -> None:
        needs = {
            "text": request.text,
            "stop": params.stop,
            "stop_regex": params.stop_regex,
            "min_new_tokens": params.min_new_tokens,
        }
        for field, value in needs.items():
            if value:
                raise RequestError(f"{field} needs a tokenizer, and this server runs without one", field)

    async def _prompts(self, requests: Sequence[ChoiceRequest]) -> list[list[int]]:
        vocab_size = self._card.vocab_size
        prompts = [
            [] if request.input_ids is None else checks.token_ids("input_ids", request.input_ids, vocab_size)
            for request in requests
        ]
        texts = [(index, request) for index, request in enumerate(requests) if request.text is not None]
        if sum(len(request.text or "") for _, request in texts) > _INLINE_CHARS:
            encoded = await asyncio.to_thread(self._encode, [request for _, request in texts])
        else:
            encoded = self._encode([request for _, request in texts])
        for (index, _), ids in zip(texts, encoded, strict=True):
            prompts[index] = ids
        return prompts

    def _encode(self, requests: Sequence[ChoiceRequest]) -> list[list[int]]:
        return [self._encode_one(request) for request in requests]

    def _encode_one(self, request: ChoiceRequest) -> list[int]:
        assert self._tokenizer is not None and request.text is not None
        return encode(self._tokenizer, request.text, request.add_special_tokens)


def encode(tokenizer: Encoder, text: str, add_special_tokens: bool) -> list[int]:
    """The token ids of a prompt. RequestError when `text` cannot be encoded.

    `add_special_tokens` adds BOS where the tokenizer does; a text that brings its own does not get a second one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"text is not valid Unicode: {error.reason}", "text") from error
    ids = tokenizer.encode(text, add_special_tokens)
    bos = tokenizer.bos_token_id
    return ids[1:] if add_special_tokens and ids[:2] == [bos, bos] else ids


def _fitted(request: ChoiceRequest, sampling: validate.Sampling, ids: list[int], limits: Limits) -> Prepared:
    if request.input_ids is not None and not ids:
        raise RequestError("input_ids cannot be empty.", "input_ids")
    field = "text" if request.input_ids is None else "input_ids"
    lengths = fit(len(ids), sampling.max_new_tokens, sampling.max_new_tokens_given, limits, field)
    params = msgspec.structs.replace(
        sampling.params,
        max_new_tokens=lengths.max_new_tokens,
        min_new_tokens=min(sampling.params.min_new_tokens, lengths.max_new_tokens),
    )
    cut = len(ids) - lengths.prompt_tokens
    return Prepared(ids[: lengths.prompt_tokens], params, sampling.text, cut, sampling.stream_interval)

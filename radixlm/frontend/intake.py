"""From a request as it came to one that the scheduler can run: tokens, parameters, lengths. Keeps no request."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from radixlm.base.errors import RequestError
from radixlm.config.card import ModelCard
from radixlm.frontend import checks, readings, validate
from radixlm.frontend.choice import ChoiceRequest
from radixlm.frontend.constraints import grammar_of
from radixlm.frontend.lengths import Limits, fit, fit_alone, fit_text
from radixlm.frontend.prompts import Prompts
from radixlm.frontend.task import refuse_other_task
from radixlm.protocol.arrays import I32
from radixlm.protocol.extras import LogprobOptions
from radixlm.protocol.grammar import GrammarSpec
from radixlm.protocol.messages import TextOptions
from radixlm.protocol.sampling import SamplingParams


@dataclass(frozen=True)
class Prepared:
    """A request that may run. `prompt_ids` int32 [n]; `truncated_tokens` were taken off the prompt's end.

    `stream_interval` None leaves it to the server how many tokens a message of a stream has. `logprobs`,
    `hidden_start` and `grammar` as in TokenizedGenerateReqInput.
    """

    prompt_ids: I32
    sampling: SamplingParams
    text: TextOptions
    truncated_tokens: int
    stream_interval: int | None = None
    logprobs: LogprobOptions | None = None
    hidden_start: int | None = None
    grammar: GrammarSpec | None = None


_priority = checks.integer(checks.INT64_MIN)


class Intake:
    """Checks and tokenizes. `prompts` None: prompts come as ids, and nothing that needs text is served."""

    def __init__(
        self,
        card: ModelCard,
        prompts: Prompts | None,
        random_seed: int | None = None,
        hidden_states: bool = False,
        longest_token_chars: int = 0,
    ) -> None:
        """`random_seed` makes the seeds of requests that bring none repeatable, in order of arrival; `hidden_states`:
        whether requests may ask for them; `longest_token_chars`: of the vocabulary's texts."""
        self._longest_token_chars = longest_token_chars
        self._hidden_states = hidden_states
        self._card = card
        self._encoding = prompts
        self._draw = random.Random(random_seed)

    async def prepare(self, requests: Sequence[ChoiceRequest], limits: Limits) -> list[Prepared]:
        """All of `requests`, in order; RequestError for the first that must be refused."""
        parsed = [self._parse(request) for request in requests]
        prompts = await self._prompts(requests, limits)
        return [
            _fitted(request, sampling, ids, limits)
            for request, sampling, ids in zip(requests, parsed, prompts, strict=True)
        ]

    def _parse(self, request: ChoiceRequest) -> validate.Sampling:
        given = (request.text, request.input_ids, request.input_embeds)
        if sum(prompt is not None for prompt in given) != 1:
            raise RequestError("Exactly one of text, input_ids and input_embeds must be given.", "text")
        if request.priority is not None:
            _priority("priority", request.priority)
        refuse_other_task(self._card, request.pooled)
        readings.check(request, self._card, self._hidden_states)
        defaults = self._card.generation if request.apply_generation_defaults else None
        sampling = validate.parse(request.sampling_params, self._card.vocab_size, defaults, self._draw)
        if self._encoding is None:
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

    async def _prompts(self, requests: Sequence[ChoiceRequest], limits: Limits) -> list[I32]:
        vocab_size = self._card.vocab_size
        prompts = [
            np.zeros(0 if request.input_embeds is None else len(request.input_embeds), np.int32)
            if request.input_ids is None
            else np.array(checks.token_ids("input_ids", request.input_ids, vocab_size), np.int32)
            for request in requests
        ]
        places = [place for place, request in enumerate(requests) if request.text is not None]
        if places and self._encoding is not None:
            longest = self._longest_token_chars
            texts = [fit_text(requests[place].text or "", longest, limits) for place in places]
            encoded = await self._encoding.encode(texts, [requests[place].add_special_tokens for place in places])
            for place, ids in zip(places, encoded, strict=True):
                prompts[place] = ids
        return prompts

    def fail(self, message: str) -> None:
        """Nothing can be tokenized any more: requests being prepared are refused with `message`."""
        if self._encoding is not None:
            self._encoding.fail(message)


def _fitted(request: ChoiceRequest, sampling: validate.Sampling, ids: I32, limits: Limits) -> Prepared:
    if request.input_ids is not None and not len(ids):
        raise RequestError("input_ids cannot be empty.", "input_ids")
    field = "text" if request.input_ids is None else "input_ids"
    if request.pooled:
        lengths = fit_alone(len(ids), limits, field)
    else:
        lengths = fit(len(ids), sampling.max_new_tokens, sampling.max_new_tokens_given, limits, field)
    params = msgspec.structs.replace(
        sampling.params,
        max_new_tokens=lengths.max_new_tokens,
        min_new_tokens=min(sampling.params.min_new_tokens, lengths.max_new_tokens),
    )
    cut = len(ids) - lengths.prompt_tokens
    return Prepared(
        _cut(request, ids, lengths.prompt_tokens),
        params,
        sampling.text,
        cut,
        sampling.stream_interval,
        readings.logprobs_of(request, lengths.prompt_tokens),
        readings.hidden_start_of(request, lengths.prompt_tokens),
        grammar_of(request, sampling.constraint, sampling.custom_params),
    )


def _cut(request: ChoiceRequest, ids: I32, most: int) -> I32:
    """The first `most` of `ids`; a text that is pooled keeps its last token, which its tokenizer has put there."""
    if len(ids) <= most:
        return ids
    if request.pooled and request.text is not None and most > 1:
        return np.concatenate((ids[: most - 1], ids[-1:]))
    return ids[:most]

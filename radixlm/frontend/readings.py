"""What a request wants beside its tokens, checked against the model and its own prompt. Knows no route."""

from typing import Any

import msgspec
import numpy as np

from radixlm.base.errors import RequestError
from radixlm.config.card import ModelCard
from radixlm.frontend.choice import ChoiceRequest
from radixlm.protocol.arrays import F32
from radixlm.protocol.extras import OUTPUTS_ONLY, LogprobOptions

# Prompt positions times what is listed at each; the same in JSON is some 40 times as many bytes.
MAX_PROMPT_LOGPROBS = 1 << 22


def check(request: ChoiceRequest, card: ModelCard, hidden_states: bool) -> None:
    """RequestError for what this model or server cannot give, whatever the prompt. `hidden_states`: whether it may."""
    if request.hidden_states is not None and not hidden_states:
        raise RequestError(
            "return_hidden_states needs a server with --enable-return-hidden-states", "return_hidden_states"
        )
    if request.logprobs is not None:
        if request.logprobs.top > card.vocab_size:
            raise RequestError(
                f"top_logprobs_num is above the vocabulary's {card.vocab_size} tokens", "top_logprobs_num"
            )
        for id_ in request.logprobs.token_ids:
            if not 0 <= id_ < card.vocab_size:
                message = f"token_ids_logprob has {id_}, but the vocabulary is [0, {card.vocab_size})"
                raise RequestError(message, "token_ids_logprob")
    if request.input_embeds is not None and request.input_embeds.shape[1] != card.hidden_size:
        width = request.input_embeds.shape[1]
        raise RequestError(
            f"input_embeds has vectors of {width} numbers; this model's have {card.hidden_size}", "input_embeds"
        )


def logprobs_of(request: ChoiceRequest, prompt_tokens: int) -> LogprobOptions | None:
    """The request's log probabilities, now that its prompt's length is known. RequestError names what is too much."""
    options = request.logprobs
    if options is None:
        return None
    if options.start != OUTPUTS_ONLY and options.start > prompt_tokens:
        raise RequestError(
            f"logprob_start_len ({options.start}) is higher than the number of input tokens ({prompt_tokens})",
            "logprob_start_len",
        )
    start = min(options.start, prompt_tokens)
    each = 1 + options.top + len(options.token_ids)
    if (prompt_tokens - start) * each > MAX_PROMPT_LOGPROBS:
        raise RequestError(
            f"{prompt_tokens - start} prompt tokens with {each} log probabilities each are more than the "
            f"{MAX_PROMPT_LOGPROBS} that one prompt may have: ask for fewer of top_logprobs_num and token_ids_logprob, "
            "or for a later logprob_start_len",
            "top_logprobs_num",
        )
    return msgspec.structs.replace(options, start=start)


def hidden_start_of(request: ChoiceRequest, prompt_tokens: int) -> int | None:
    """The first position whose hidden vector is wanted."""
    if request.hidden_states is None:
        return None
    return 0 if request.hidden_states == "full" else prompt_tokens - 1


def embeds_of(values: Any, field: str) -> F32:
    """A matrix of finite numbers as float32 [n, hidden_size]; RequestError when `values` is none."""
    try:
        matrix = np.array(values)
    except ValueError:
        matrix = np.array(None)  # rows of different lengths
    if matrix.dtype.kind not in "fi" or matrix.ndim != 2 or not matrix.size:
        raise RequestError(f"{field} must be a matrix: a list of numbers for each position, of equal lengths", field)
    with np.errstate(over="ignore"):
        single: F32 = matrix.astype(np.float32)
    if not np.isfinite(single).all():
        row = int(np.flatnonzero(~np.isfinite(single).all(axis=1))[0])
        raise RequestError(f"{field}[{row}] has a number that is not finite in 32 bits", field)
    return single

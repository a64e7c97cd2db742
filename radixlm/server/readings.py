"""Log probabilities, hidden states and embeddings in SGLang's form: fields that ask for them, keys of meta_info."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import Choice
from radixlm.frontend.readings import embeds_of
from radixlm.protocol.arrays import F32
from radixlm.protocol.extras import OUTPUTS_ONLY, Extras, LogprobOptions, TokenLogprobs
from radixlm.server.limits import MAX_EMBED_VALUES, MAX_LOGPROB_TOKEN_IDS, MAX_TOP_LOGPROBS
from radixlm.server.services import Services, Tokenizer

Triple: TypeAlias = list[Any]  # log probability or None, token id, text or None
TextOf: TypeAlias = Callable[[int], str]


def options_of(start: int | None, top: int | None, token_ids: Sequence[int] | None) -> LogprobOptions:
    """What SGLang's three fields ask for. RequestError names the one that is out of its range."""
    first, count, ids = -1 if start is None else start, top or 0, tuple(token_ids or ())
    if first < -1:
        raise RequestError(f"logprob_start_len must be at least -1, got {first}", "logprob_start_len")
    check_top(count, "top_logprobs_num", MAX_TOP_LOGPROBS)
    if len(ids) > MAX_LOGPROB_TOKEN_IDS:
        raise RequestError(
            f"token_ids_logprob must have at most {MAX_LOGPROB_TOKEN_IDS} ids, got {len(ids)}", "token_ids_logprob"
        )
    return LogprobOptions(OUTPUTS_ONLY if first < 0 else first, count, ids)


def check_top(count: int, field: str, most: int) -> None:
    """RequestError when so many alternatives may not be listed at each position."""
    if not 0 <= count <= most:
        raise RequestError(f"{field} must be at least 0 and at most {most}, got {count}", field)


def embeds_prompts(values: Sequence[Any]) -> tuple[list[F32], bool]:
    """`input_embeds`: one matrix, or a list of them, and whether it was the second form."""
    field, first = "input_embeds", values[0] if values else None
    batch = isinstance(first, list) and bool(first) and isinstance(first[0], list)
    prompts = [embeds_of(one, field) for one in values] if batch else [embeds_of(values, field)]
    total = sum(one.size for one in prompts)
    if total > MAX_EMBED_VALUES:
        raise RequestError(f"{field} has {total} numbers, more than {MAX_EMBED_VALUES}", field)
    return prompts, batch


def required_tokenizer(services: Services, field: str) -> Tokenizer:
    """The server's tokenizer; RequestError names the field that cannot do without."""
    tokenizer = services.manager.tokenizer
    if tokenizer is None:
        raise RequestError(f"{field} needs a tokenizer, and this server runs without one", field)
    return tokenizer


def token_text(tokenizer: Tokenizer) -> TextOf:
    """What gives a token's text, each id decoded alone, special ones included."""
    return lambda id_: tokenizer.decode([id_], skip_special_tokens=False)


class Readings:
    """What one choice's meta_info says of log probabilities and hidden states; grows with what comes."""

    def __init__(self, choice: Choice, text_of: TextOf | None = None) -> None:
        """`text_of` gives a token's text, where texts are wanted."""
        self._choice = choice
        self._text_of = text_of
        self._input = _Side()
        self._output = _Side()
        self._told = 0  # outputs of the last `meta`
        self._hidden: list[F32] = []

    def take(self, extras: Sequence[Extras]) -> None:
        """Add what has come since."""
        options = self._choice.logprobs
        for one in extras:
            if options is not None and one.prompt is not None:
                self._begin_input(options)
                self._input.add(one.prompt, options, self._text_of)
            if options is not None and one.output is not None:
                self._output.add(one.output, options, self._text_of)
            if one.hidden is not None:
                self._hidden.append(one.hidden)

    def meta(self, new_only: bool = False) -> dict[str, Any]:
        """The keys of meta_info; with `new_only` those of outputs have what came since the last call."""
        found: dict[str, Any] = {}
        options = self._choice.logprobs
        if options is not None:
            self._begin_input(options)
            first = self._told if new_only else 0
            self._told = len(self._output.tokens)
            found["input_token_logprobs"] = self._input.tokens
            found["output_token_logprobs"] = self._output.tokens[first:]
            found["output_token_logprobs_length"] = len(self._output.tokens)
            if options.top:
                found["input_top_logprobs"] = self._input.top
                found["output_top_logprobs"] = self._output.top[first:]
            if options.token_ids:
                found["input_token_ids_logprobs"] = self._input.chosen
                found["output_token_ids_logprobs"] = self._output.chosen[first:]
        if self._hidden:
            vectors = np.concatenate(self._hidden)
            prompt = len(self._choice.prompt_ids)
            found["hidden_states"] = [vectors[:prompt].tolist(), *vectors[prompt:].tolist()]
        return found

    def _begin_input(self, options: LogprobOptions) -> None:
        """The first token has nothing before it that was read: its place holds nulls."""
        if not self._input.tokens and options.start < len(self._choice.prompt_ids):
            first = int(self._choice.prompt_ids[options.start])
            self._input.tokens.append([None, first, self._text_of(first) if self._text_of is not None else None])
            self._input.top.append(None)
            self._input.chosen.append(None)


class _Side:
    """The three lists of prompt or output."""

    def __init__(self) -> None:
        self.tokens: list[Triple] = []
        self.top: list[list[Triple] | None] = []
        self.chosen: list[list[Triple] | None] = []

    def add(self, part: TokenLogprobs, options: LogprobOptions, text_of: TextOf | None) -> None:
        self.tokens += _triples(part.values.tolist(), part.tokens.tolist(), text_of)
        if options.top:
            for values, ids in zip(part.top_values.tolist(), part.top_tokens.tolist(), strict=True):
                self.top.append(_triples(values, ids, text_of))
        if options.token_ids:
            for values in part.chosen_values.tolist():
                self.chosen.append(_triples(values, options.token_ids, text_of))


def _triples(values: Sequence[float], ids: Sequence[int], text_of: TextOf | None) -> list[Triple]:
    if text_of is None:
        return [[value, id_, None] for value, id_ in zip(values, ids, strict=True)]
    return [[value, id_, text_of(id_)] for value, id_ in zip(values, ids, strict=True)]

"""POST /v1/completions: its body and the shape of its answers."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import ChoiceRequest, Update
from radixlm.protocol.extras import OUTPUTS_ONLY, Extras, LogprobOptions
from radixlm.server.errors import openai_event
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import Transcript, check_n, error_of, generate
from radixlm.server.limits import MAX_TOP_LOGPROBS
from radixlm.server.native import id_prompts
from radixlm.server.openai.common import (
    COMMON_REFUSED,
    CommonBody,
    Frame,
    expand,
    finish_of,
    hidden_of,
    namespace_of,
    own_names,
    sampling_of,
)
from radixlm.server.openai.infill import infill
from radixlm.server.openai.logprobs import CompletionLogprobs, TokenTexts
from radixlm.server.parsing import with_thinking
from radixlm.server.readings import check_top, required_tokenizer
from radixlm.server.refused import Refusals
from radixlm.server.route import Row
from radixlm.server.services import Services

DEFAULT_MAX_TOKENS = 16


class CompletionBody(CommonBody, kw_only=True, frozen=True):
    """The fields of /v1/completions that work."""

    prompt: str | list[str | int | list[int]]
    max_tokens: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    logprobs: int | None = None
    return_hidden_states: bool | Literal["last"] | None = None
    json_schema: str | None = None


REFUSED = Refusals(COMMON_REFUSED)

_decoder = msgspec.json.Decoder(CompletionBody)


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str] | list[list[int]]:
    """The prompts in any of the four forms: text, texts, token ids, lists of token ids."""
    if not prompt or prompt == [""]:
        raise RequestError("Prompt cannot be empty", "prompt")
    if isinstance(prompt, str):
        return [prompt]
    texts = [one for one in prompt if isinstance(one, str)]
    if not texts:
        return id_prompts(prompt, "prompt")[0]
    if len(texts) != len(prompt):
        raise RequestError("prompt mixes texts and token ids", "prompt")
    if "" in texts:
        raise RequestError(f"Prompt cannot be empty: prompt[{texts.index('')}]", "prompt")
    return texts


class CompletionView:
    """Answers of /v1/completions. `echoes` has the text to put before each choice, "" for none.

    `logprobs` makes what shows each choice's log probabilities. Of the choices of one prompt (`frame.n`) the `best` are
    shown, those with the highest log probability per token, where that is fewer.
    """

    def __init__(
        self,
        frame: Frame,
        echoes: Sequence[str],
        logprobs: Callable[[], CompletionLogprobs] | None = None,
        best: int | None = None,
    ) -> None:
        self._frame = frame
        self._echoes = list(echoes)
        self._make_logprobs = logprobs
        self._best = frame.n if best is None else best
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def events(self, transcript: Transcript, update: Update) -> Iterable[Any]:
        error = error_of(transcript.reason)
        if error is not None:
            yield openai_event(error)
            return
        echo, self._echoes[transcript.index] = self._echoes[transcript.index], ""
        text = echo + update.text
        if not text and update.finished is None and not update.extras:
            return
        logprobs = self._shown_logprobs(transcript, update.extras)
        chunk = self._frame.head(transcript, "text_completion")
        chunk["choices"] = [self._choice(transcript, transcript.index, text, logprobs)]
        chunk["usage"] = self._frame.usage([transcript]) if self._frame.continuous_usage else None
        yield chunk

    def closing(self, transcripts: Sequence[Transcript]) -> Iterable[Any]:
        for one in transcripts:
            hidden = hidden_of(one)
            if hidden is not None:
                choice = {"index": one.index, "text": "", "logprobs": None, "finish_reason": None}
                head = self._frame.head(one, "text_completion")
                yield {**head, "choices": [{**choice, "hidden_states": hidden}], "usage": None}
        if self._frame.final_usage:
            usage = {key: value for key, value in self._frame.usage(transcripts).items() if value is not None}
            yield {**self._frame.head(transcripts[0], "text_completion"), "choices": [], "usage": usage}

    def whole(self, transcripts: Sequence[Transcript]) -> Any:
        chosen = self._chosen(transcripts)
        choices = [self._whole_choice(one, index) for index, one in enumerate(chosen)]
        return {
            **self._frame.head(transcripts[0], "text_completion"),
            "choices": choices,
            "usage": self._frame.usage(transcripts),
            "metadata": self._frame.metadata(transcripts),
        }

    def _chosen(self, transcripts: Sequence[Transcript]) -> Sequence[Transcript]:
        if self._best == self._frame.n:
            return transcripts
        chosen: list[Transcript] = []
        for first in range(0, len(transcripts), self._frame.n):
            siblings = transcripts[first : first + self._frame.n]
            chosen += sorted(siblings, key=_mean_logprob, reverse=True)[: self._best]
        return chosen

    def _whole_choice(self, transcript: Transcript, index: int) -> dict[str, Any]:
        logprobs = self._shown_logprobs(transcript, transcript.extras)
        shown = self._choice(transcript, index, self._echoes[transcript.index] + transcript.text, logprobs)
        hidden = hidden_of(transcript)
        return shown if hidden is None else {**shown, "hidden_states": hidden}

    def _shown_logprobs(self, transcript: Transcript, extras: Sequence[Extras]) -> dict[str, Any] | None:
        if self._make_logprobs is None:
            return None
        logprobs, choice = self._logprobs.get(transcript.index), transcript.choice
        if logprobs is None:
            logprobs = self._logprobs[transcript.index] = self._make_logprobs()
            if choice.logprobs is not None and choice.logprobs.start == 0:
                logprobs.begin(int(choice.prompt_ids[0]))
        return logprobs.object(extras)

    def _choice(self, transcript: Transcript, index: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        finish_reason, matched_stop = finish_of(transcript.reason)
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "matched_stop": matched_stop,
        }


async def handle_completions(exchange: Exchange) -> None:
    exchange.require_json()
    raw = await exchange.body()
    REFUSED.check(raw)
    body = decode(raw, _decoder)
    prompts = _prompts(body.prompt)
    n, made = _counts(body, len(prompts))
    services = exchange.services
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = {**sampling_of(body), "max_new_tokens": max_tokens}
    if body.json_schema and params.setdefault("json_schema", body.json_schema) != body.json_schema:
        raise RequestError("response_format and json_schema exclude each other", "response_format")
    base = [
        ChoiceRequest(
            text=_text(services, body, prompt),
            input_ids=None if isinstance(prompt, str) else prompt,
            sampling_params=params,
            logprobs=_logprobs(body, ranked=made > n),
            hidden_states="last" if body.return_hidden_states else None,
            stream=bool(body.stream),
            namespace=namespace_of(body),
            priority=body.priority,
            processor=body.custom_logit_processor or None,
            answer_at_once=True,
        )
        for prompt in prompts
    ]
    base = [with_thinking(services, request) for request in base]
    echoes = [_echo(exchange, prompt) if body.echo else "" for prompt in prompts for _ in range(made)]
    logprobs = None
    if body.logprobs is not None:
        texts = TokenTexts(required_tokenizer(services, "logprobs"), body.skip_special_tokens is not False)
        logprobs = partial(CompletionLogprobs, texts, body.logprobs)
    view = CompletionView(Frame(services, body, made), echoes, logprobs, n)
    with own_names("max_tokens", "prompt", "logprobs"):
        await exchange.while_connected(generate(exchange, expand(base, made, body.rid), view, bool(body.stream)))


def _counts(body: CompletionBody, prompts: int) -> tuple[int, int]:
    """How many choices of each prompt are shown, and how many are made to choose them from."""
    n = check_n(body.n, prompts)
    if body.best_of is None:
        return n, n
    made = check_n(body.best_of, prompts, "best_of")
    if made < n:
        raise RequestError(f"best_of ({made}) must be at least n ({n})", "best_of")
    if made > n and body.stream:
        raise RequestError("best_of above n cannot be streamed: the best are known at the end", "best_of")
    return n, made


def _logprobs(body: CompletionBody, ranked: bool) -> LogprobOptions | None:
    """With echo those of the prompt too. `ranked`: the choices are compared by them, shown or not."""
    if body.logprobs is None:
        return LogprobOptions(OUTPUTS_ONLY) if ranked else None
    check_top(body.logprobs, "logprobs", MAX_TOP_LOGPROBS)
    return LogprobOptions(0 if body.echo else OUTPUTS_ONLY, body.logprobs)


def _text(services: Services, body: CompletionBody, prompt: str | list[int]) -> str | None:
    """The prompt as text, around its suffix if there is one; None for token ids."""
    if not body.suffix:
        return prompt if isinstance(prompt, str) else None
    if not isinstance(prompt, str):
        raise RequestError("suffix needs a prompt of text, not of token ids", "suffix")
    if body.echo and body.logprobs is not None:
        raise RequestError("suffix cannot be combined with echo and logprobs", "suffix")
    return infill(services.manager.tokenizer, prompt, body.suffix)


def _mean_logprob(transcript: Transcript) -> float:
    values = [value for one in transcript.extras if one.output is not None for value in one.output.values.tolist()]
    return sum(values) / len(values) if values else -math.inf


def _echo(exchange: Exchange, prompt: str | list[int]) -> str:
    """The prompt as text. Ids that are no tokens give "": they are refused right after, with a better message."""
    if isinstance(prompt, str):
        return prompt
    manager = exchange.services.manager
    if manager.tokenizer is None:
        raise RequestError("echo of token ids needs a tokenizer, and this server runs without one", "echo")
    if not all(0 <= token < manager.card.vocab_size for token in prompt):
        return ""
    return manager.tokenizer.decode(prompt, skip_special_tokens=True)


ROWS = (Row("/v1/completions", ("POST",), handle_completions, "user", "openai", CompletionBody, "generation"),)

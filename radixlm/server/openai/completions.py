"""POST /v1/completions: its body and the shape of its answers."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import ChoiceRequest, Update
from radixlm.server.errors import openai_event
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import Transcript, check_n, error_of, generate
from radixlm.server.native import id_prompts
from radixlm.server.openai.common import (
    COMMON_REFUSED,
    CommonBody,
    Frame,
    expand,
    finish_of,
    namespace_of,
    own_names,
    sampling_of,
)
from radixlm.server.refused import Refusals, Refused
from radixlm.server.route import Row

DEFAULT_MAX_TOKENS = 16


class CompletionBody(CommonBody, kw_only=True, frozen=True):
    """The fields of /v1/completions that work."""

    prompt: str | list[str | int | list[int]]
    max_tokens: int | None = None
    echo: bool | None = None


REFUSED = Refusals([*COMMON_REFUSED, Refused("suffix")])

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
    """Answers of /v1/completions. `echoes` has the text to put before each choice, "" for none."""

    def __init__(self, frame: Frame, echoes: Sequence[str]) -> None:
        self._frame = frame
        self._echoes = list(echoes)

    def events(self, transcript: Transcript, update: Update) -> Iterable[Any]:
        error = error_of(transcript.reason)
        if error is not None:
            yield openai_event(error)
            return
        echo, self._echoes[transcript.index] = self._echoes[transcript.index], ""
        text = echo + update.text
        if not text and update.finished is None:
            return
        chunk = self._frame.head(transcript, "text_completion")
        chunk["choices"] = [self._choice(transcript, text)]
        chunk["usage"] = self._frame.usage([transcript]) if self._frame.continuous_usage else None
        yield chunk

    def closing(self, transcripts: Sequence[Transcript]) -> Iterable[Any]:
        if self._frame.final_usage:
            usage = {key: value for key, value in self._frame.usage(transcripts).items() if value is not None}
            yield {**self._frame.head(transcripts[0], "text_completion"), "choices": [], "usage": usage}

    def whole(self, transcripts: Sequence[Transcript]) -> Any:
        return {
            **self._frame.head(transcripts[0], "text_completion"),
            "choices": [self._choice(one, self._echoes[one.index] + one.text) for one in transcripts],
            "usage": self._frame.usage(transcripts),
            "metadata": self._frame.metadata(transcripts),
        }

    def _choice(self, transcript: Transcript, text: str) -> dict[str, Any]:
        finish_reason, matched_stop = finish_of(transcript.reason)
        return {
            "index": transcript.index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "matched_stop": matched_stop,
        }


async def handle_completions(exchange: Exchange) -> None:
    exchange.require_json()
    raw = await exchange.body()
    REFUSED.check(raw)
    body = decode(raw, _decoder)
    prompts = _prompts(body.prompt)
    n = check_n(body.n, len(prompts))
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = {**sampling_of(body), "max_new_tokens": max_tokens}
    base = [
        ChoiceRequest(
            text=prompt if isinstance(prompt, str) else None,
            input_ids=None if isinstance(prompt, str) else prompt,
            sampling_params=params,
            stream=bool(body.stream),
            namespace=namespace_of(body),
            priority=body.priority,
        )
        for prompt in prompts
    ]
    echoes = [_echo(exchange, prompt) if body.echo else "" for prompt in prompts for _ in range(n)]
    view = CompletionView(Frame(exchange.services, body, n), echoes)
    with own_names("max_tokens", "prompt"):
        await exchange.while_connected(generate(exchange, expand(base, n, body.rid), view, bool(body.stream)))


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


ROWS = (Row("/v1/completions", ("POST",), handle_completions, "user", "openai"),)

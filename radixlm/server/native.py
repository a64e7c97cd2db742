"""SGLang's own route, /generate: its body, the order of batches and n, and the shape of its answers."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from radixlm.base.errors import RequestError
from radixlm.frontend.choice import ChoiceRequest, Update
from radixlm.protocol.arrays import F32
from radixlm.protocol.extras import Extras, LogprobOptions
from radixlm.protocol.messages import CacheNamespace
from radixlm.server.answer import answer
from radixlm.server.exchange import Exchange, decode
from radixlm.server.generation import Transcript, View, check_n, choice_seed, generate
from radixlm.server.limits import MAX_CHOICES, MAX_RID_CHARS
from radixlm.server.parsing import with_thinking
from radixlm.server.readings import Readings, TextOf, embeds_prompts, options_of, required_tokenizer, token_text
from radixlm.server.refused import Refusals, Refused
from radixlm.server.route import Row
from radixlm.server.services import Services
from radixlm.server.session_routes import RecordingView, turn
from radixlm.server.sessions import SessionParams

T = TypeVar("T")


class GenerateBody(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of /generate that work. Unknown keys are ignored, as in SGLang."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str] | None = None
    stream: bool | None = None
    extra_key: str | list[str | None] | None = None
    cache_salt: str | list[str | None] | None = None
    priority: int | None = None
    routing_key: str | None = None
    return_prompt_token_ids: bool | None = None
    background: bool | None = None
    input_embeds: list[Any] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int | None] | None = None
    top_logprobs_num: int | list[int | None] | None = None
    token_ids_logprob: list[int | list[int] | None] | None = None
    return_text_in_logprobs: bool | None = None
    return_hidden_states: bool | list[bool] | None = None
    session_params: SessionParams | None = None
    custom_logit_processor: str | list[str | None] | None = None
    require_reasoning: bool | None = None


REFUSED = Refusals(
    [
        *(Refused(name) for name in ("image_data", "video_data", "audio_data", "modalities", "return_routed_experts")),
        *(Refused(name) for name in ("return_indexer_topk", "return_sampling_mask", "return_entropy", "return_bytes")),
        *(Refused(name) for name in ("return_flat_raw_top_logprobs", "return_flat_raw_output_top_logprobs")),
        *(Refused(name) for name in ("lora_path", "session_id")),
        *(Refused(name) for name in ("max_thinking_tokens", "watermark", "kv_hints")),
        *(Refused(name) for name in ("bootstrap_host", "bootstrap_port", "bootstrap_room", "disagg_prefill_dp_rank")),
        *(Refused(name, (0,)) for name in ("routed_dp_rank", "data_parallel_rank")),
    ]
)

_decoder = msgspec.json.Decoder(GenerateBody)


def _prompts(body: GenerateBody) -> tuple[list[str] | list[list[int]] | list[F32], bool]:
    """The prompts, and whether the request is a batch."""
    if body.text is not None and body.input_ids is not None:
        raise RequestError("Give either text or input_ids, not both", "input_ids")
    if body.input_embeds is not None:
        if body.text is not None or body.input_ids is not None or body.session_params is not None:
            raise RequestError("Give input_embeds without text, input_ids and session_params", "input_embeds")
        return embeds_prompts(body.input_embeds)
    if body.text is not None:
        texts = [body.text] if isinstance(body.text, str) else body.text
        if not texts:
            raise RequestError("text must not be an empty list", "text")
        return texts, isinstance(body.text, list)
    if body.session_params is not None and body.input_ids == []:
        nothing: list[list[int]] = [[]]
        return nothing, False  # a turn may add no tokens
    if body.input_ids is None:
        raise RequestError("Either text, input_ids or input_embeds should be provided", "text")
    return id_prompts(body.input_ids, "input_ids")


def id_prompts(values: Sequence[Any], field: str) -> tuple[list[list[int]], bool]:
    """Token-id prompts out of `[1, 2]` or `[[1, 2], [3]]`, and whether it was the second form."""
    if not values:
        raise RequestError(f"{field} cannot be empty.", field)
    nested = [value for value in values if isinstance(value, list)]
    if nested and len(nested) != len(values):
        raise RequestError(f"{field} must be one list of token ids or a list of such lists", field)
    if not nested:
        return [list(values)], False
    for index, ids in enumerate(nested):
        if not ids:
            raise RequestError(f"{field}[{index}] cannot be empty.", field)
    return nested, True


def _spread(value: T | list[T] | list[T | None] | None, count: int, batch: bool, field: str) -> list[T | None]:
    """One value per prompt: a single one is repeated, a list must have the batch's length."""
    if not isinstance(value, list):
        return [value] * count
    if not batch or len(value) != count:
        raise RequestError(f"{field} has {len(value)} items for {count if batch else 'one'} prompts", field)
    return list(value)


def check_rid(rid: str | None) -> str | None:
    """The client's id; "" counts as none."""
    if rid and len(rid) > MAX_RID_CHARS:
        raise RequestError(f"rid is longer than {MAX_RID_CHARS} characters", "rid")
    return rid or None


def _rids(rid: str | list[str] | None, count: int, batch: bool) -> list[str | None]:
    if batch and isinstance(rid, str) and rid:
        return [check_rid(f"{rid}_{index}") for index in range(count)]
    rids = [check_rid(one) for one in _spread(rid, count, batch, "rid")]
    named = [one for one in rids if one is not None]
    if len(set(named)) != len(named):
        raise RequestError("rid has the same id twice", "rid")
    return rids


def expand(body: GenerateBody) -> tuple[list[ChoiceRequest], bool]:
    """One request per choice, prompt by prompt, and whether the answer is an array."""
    prompts, batch = _prompts(body)
    count = len(prompts)
    if count > MAX_CHOICES:
        raise RequestError(f"A batch of {count} prompts is larger than {MAX_CHOICES}", "text")
    sampling = [dict(one or {}) for one in _spread(body.sampling_params, count, batch, "sampling_params")]
    counts = {check_n(one.pop("n", None), count) for one in sampling}
    if len(counts) > 1:
        raise RequestError("All prompts of a batch must have the same n", "n")
    n = counts.pop()
    rids = _rids(body.rid, count, batch)
    salts = _spread(body.cache_salt, count, batch, "cache_salt")
    extras = _spread(body.extra_key, count, batch, "extra_key")
    logprobs = _logprobs(body, count, batch, n)
    hidden = _spread(body.return_hidden_states, count, batch, "return_hidden_states")
    processors = _spread(body.custom_logit_processor, count, batch, "custom_logit_processor")
    requests: list[ChoiceRequest] = []
    for place, params in enumerate(sampling):
        prompt, salt, extra = prompts[place], salts[place], extras[place]
        for index in range(n):
            own = dict(params)
            if n > 1 and "sampling_seed" in own:
                own["sampling_seed"] = choice_seed(own["sampling_seed"], index)
            requests.append(
                ChoiceRequest(
                    text=prompt if isinstance(prompt, str) else None,
                    input_ids=prompt if isinstance(prompt, list) else None,
                    input_embeds=prompt if isinstance(prompt, np.ndarray) else None,
                    sampling_params=own,
                    stream=bool(body.stream),
                    rid=rids[place] if n == 1 else None,
                    namespace=CacheNamespace(cache_salt=salt or "", extra_key=extra or ""),
                    priority=body.priority,
                    routing_key=body.routing_key or "",
                    logprobs=logprobs[place],
                    hidden_states="full" if hidden[place] else None,
                    processor=processors[place] or None,
                    answer_at_once=not body.require_reasoning,
                )
            )
    return requests, batch or n > 1


def _logprobs(body: GenerateBody, count: int, batch: bool, n: int) -> list[LogprobOptions | None]:
    """What each prompt wants of log probabilities. A flat list of token ids is for all."""
    token_ids: list[list[int] | None] = [None] * count
    given = body.token_ids_logprob or []
    flat = [id_ for id_ in given if isinstance(id_, int)]
    nested = [ids for ids in given if not isinstance(ids, int)]
    if flat and nested:
        raise RequestError(
            "token_ids_logprob must be one list of token ids or a list of such lists", "token_ids_logprob"
        )
    if given:
        token_ids = [flat] * count if flat else _spread(nested, count, batch, "token_ids_logprob")
    columns = {name: getattr(body, name) for name in ("return_logprob", "logprob_start_len", "top_logprobs_num")}
    for name, value in (*columns.items(), ("token_ids_logprob", nested or None)):
        if n > 1 and isinstance(value, list):
            raise RequestError(f"Cannot use list {name} with parallel_sample_num > 1", name)
    spread = (_spread(value, count, batch, name) for name, value in columns.items())
    return [
        options_of(start, top, ids) if wanted else None
        for wanted, start, top, ids in zip(*spread, token_ids, strict=True)
    ]


class NativeView:
    """Answers of /generate: one object, or an array for a batch; streams are cumulative unless the server says not."""

    def __init__(self, services: Services, array: bool, prompt_ids: bool, text_of: TextOf | None) -> None:
        """`prompt_ids`: the prompt's ids are shown. `text_of` gives the texts of tokens in log probabilities."""
        self._services = services
        self._array = array
        self._prompt_ids = prompt_ids
        self._text_of = text_of
        self._begun: set[int] = set()
        self._readings: dict[int, Readings] = {}

    def events(self, transcript: Transcript, update: Update) -> Iterable[Any]:
        if not update.token_ids and not update.text and update.finished is None:
            return
        first = transcript.index not in self._begun
        self._begun.add(transcript.index)
        deltas = self._services.incremental_streaming_output
        text, ids = (update.text, update.token_ids) if deltas else (transcript.text, transcript.token_ids)
        shown = self._answer(transcript, text, ids, first)
        shown["meta_info"] |= self._read(transcript, update.extras, deltas)
        if self._array:
            shown["index"] = transcript.index
        yield shown

    def closing(self, transcripts: Sequence[Transcript]) -> Iterable[Any]:
        return ()

    def whole(self, transcripts: Sequence[Transcript]) -> Any:
        answers = [self._answer(one, one.text, one.token_ids, True) for one in transcripts]
        for shown, one in zip(answers, transcripts, strict=True):
            shown["meta_info"] |= self._read(one, one.extras, False)
        return answers if self._array else answers[0]

    def _read(self, transcript: Transcript, extras: Sequence[Extras], new_only: bool) -> dict[str, Any]:
        """meta_info's log probabilities and hidden states, with what `extras` adds to those before."""
        readings = self._readings.get(transcript.index)
        if readings is None:
            readings = self._readings[transcript.index] = Readings(transcript.choice, self._text_of)
        readings.take(extras)
        return readings.meta(new_only)

    def _answer(self, transcript: Transcript, text: str, ids: list[int], first: bool) -> dict[str, Any]:
        choice, services = transcript.choice, self._services
        shown = answer(choice, text, ids, transcript.completion_tokens, services.weight_version)
        meta = shown["meta_info"]
        if first:
            meta["response_sent_to_client_ts"] = time.time()
        if services.enable_metrics and choice.started is not None:
            meta["request_received_ts"] = choice.created
            meta["queue_time"] = choice.started.queue_time
        if self._prompt_ids:
            shown["prompt_token_ids"] = choice.prompt_ids
        return shown


async def handle_generate(exchange: Exchange) -> None:
    raw = await exchange.body()
    REFUSED.check(raw)
    body = decode(raw, _decoder)
    requests, array = expand(body)
    services, text_of = exchange.services, None
    if body.require_reasoning and services.reasoning_parser is None:
        raise RequestError("require_reasoning needs a server with --reasoning-parser", "require_reasoning")
    requests = [with_thinking(services, request) for request in requests]
    if body.return_text_in_logprobs:
        text_of = token_text(required_tokenizer(services, "return_text_in_logprobs"))
    view = NativeView(services, array, bool(body.return_prompt_token_ids), text_of)
    session = body.session_params
    if session is None:
        await _run(exchange, body, requests, view)
        return
    async with turn(exchange.services, session, requests) as request:
        await _run(exchange, body, [request], RecordingView(view, exchange.services.sessions, session.id))


async def _run(exchange: Exchange, body: GenerateBody, requests: list[ChoiceRequest], view: View) -> None:
    work = generate(exchange, requests, view, bool(body.stream))
    if body.background:
        await work
    else:
        await exchange.while_connected(work)


ROWS = (Row("/generate", ("POST", "PUT"), handle_generate, "user", body=GenerateBody, task="generation"),)

"""Engine: the serving engine inside a Python program, with SGLang's method names. No HTTP; the same processes."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from radixlm import __version__
from radixlm.api import pooled
from radixlm.api.runtime import Model, Runtime, start_scheduler
from radixlm.base import log
from radixlm.base.errors import RequestError
from radixlm.config.groups import Config
from radixlm.engine.child import Child
from radixlm.frontend.choice import Updates
from radixlm.observability.metrics import NullMetrics
from radixlm.protocol import control
from radixlm.server.answer import answer
from radixlm.server.generation import Transcript, error_of
from radixlm.server.native import GenerateBody, expand
from radixlm.server.pooled.encode import EncodeBody
from radixlm.server.pooled.score import ScoreBody
from radixlm.server.readings import Readings

T = TypeVar("T")
Answer = dict[str, Any]
_ASKED = frozenset(
    (
        *("input_embeds", "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob"),
        "return_hidden_states",
    )
)


class Engine:
    """Loads a model and generates.

    Keyword arguments are the server's flags in snake case: `Engine(model_path="demo", dtype="float32")`. A context
    manager; otherwise call `shutdown`. Methods may be called from any thread.

    Raises RadixError (ConfigError, ModelError, CapacityError) when the engine cannot be started.
    """

    def __init__(self, **flags: Any) -> None:
        flags.setdefault("log_level", "error")
        self._config = Config.from_flat(flags)
        log.setup(self._config.server.log_level)
        scheduler = start_scheduler()
        try:
            model = Model.find(self._config)
        except BaseException:
            scheduler.end(0.0)
            raise
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="radixlm-engine", daemon=True)
        self._thread.start()
        try:
            self._runtime = self._wait(self._launch(model, scheduler))
        except BaseException:
            self._stop_loop()
            raise

    async def _launch(self, model: Model, scheduler: Child) -> Runtime:
        runtime = Runtime(self._config, model, NullMetrics(), scheduler)
        try:
            await runtime.start()
        except BaseException:
            await runtime.stop()
            raise
        self._watching = asyncio.create_task(self._watch(runtime))
        return runtime

    @staticmethod
    async def _watch(runtime: Runtime) -> None:
        runtime.manager.fail(await runtime.watch())

    def generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        stream: bool = False,
        rid: str | Sequence[str] | None = None,
        **asked: Any,
    ) -> Any:
        """Continue one prompt or several.

        Exactly one of `prompt` (text), `input_ids` and `input_embeds` is given, single or as a list; `sampling_params`
        is one mapping for all or a list. `asked`: `input_embeds`, `return_logprob`, `logprob_start_len`,
        `top_logprobs_num`, `token_ids_logprob` and `return_hidden_states` as in /generate. Returns what /generate
        answers: a dict with `text`, `output_ids` and `meta_info`, or a list of them; with `stream` an iterator of such
        dicts with the text so far (and `index`, where there are several).
        Raises RequestError for a request that is refused or that the engine could not finish.
        """
        requested = _body(asked, prompt, sampling_params, input_ids, stream, rid)
        if stream:
            return self._pull(self._steps(requested))
        return self._wait(self._whole(requested))

    async def async_generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        stream: bool = False,
        rid: str | Sequence[str] | None = None,
        **asked: Any,
    ) -> Any:
        """`generate` for a running event loop: the result, or with `stream` an async iterator."""
        requested = _body(asked, prompt, sampling_params, input_ids, stream, rid)
        if stream:
            return self._pull_async(self._steps(requested))
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._whole(requested), self._loop))

    def encode(
        self,
        prompt: str | Sequence[str] | Sequence[Sequence[str]] | None = None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        dimensions: int | None = None,
        rid: str | Sequence[str] | None = None,
    ) -> Any:
        """The embedding of each prompt, or a classifier's scores of it.

        Exactly one of `prompt` (a text, texts, or pairs of texts for a cross-encoder) and `input_ids` is given. Returns
        what /encode answers: a dict with `embedding` and `meta_info`, or a list of them. RequestError as in `generate`.
        """
        return self._wait(self._vectors(prompt, input_ids, dimensions, rid))

    async def async_encode(
        self,
        prompt: str | Sequence[str] | Sequence[Sequence[str]] | None = None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        dimensions: int | None = None,
        rid: str | Sequence[str] | None = None,
    ) -> Any:
        """`encode` for a running event loop."""
        return await self._there(self._vectors(prompt, input_ids, dimensions, rid))

    def rerank(self, prompt: Sequence[Sequence[str]]) -> Any:
        """A cross-encoder's score of each (query, document): a list of dicts as `encode` returns them."""
        return self.encode(prompt)

    def score(
        self,
        query: str | Sequence[int] | None,
        items: str | Sequence[str] | Sequence[Sequence[int]],
        label_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        apply_softmax: bool = False,
        item_first: bool = False,
        temperature: float = 1.0,
    ) -> pooled.ScoreResult:
        """How likely each label follows `query` and an item, for every item; of a classifier, what it says of them.

        See /v1/score in docs/embeddings.md. RequestError as in `generate`.
        """
        return self._wait(self._scores(query, items, label_token_ids, apply_softmax, item_first, temperature))

    async def async_score(
        self,
        query: str | Sequence[int] | None,
        items: str | Sequence[str] | Sequence[Sequence[int]],
        label_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        apply_softmax: bool = False,
        item_first: bool = False,
        temperature: float = 1.0,
    ) -> pooled.ScoreResult:
        """`score` for a running event loop."""
        return await self._there(self._scores(query, items, label_token_ids, apply_softmax, item_first, temperature))

    def flush_cache(self) -> control.FlushCacheReply:
        """Forget all cached prefixes; refused while requests run."""
        reply = self._wait(self._runtime.manager.control("flush_cache", control.Empty()))
        assert isinstance(reply, control.FlushCacheReply)
        return reply

    def get_server_info(self) -> dict[str, Any]:
        """The resolved settings, the capacity and the scheduler's live numbers."""
        ready = self._runtime.manager.ready
        assert ready is not None
        state = self._wait(self._runtime.manager.control("internal_state", control.Empty()))
        assert isinstance(state, control.InternalStateReply)
        return {
            **self._config.shown(),
            **ready.facts,
            "max_total_num_tokens": ready.max_total_num_tokens,
            "internal_states": [state.state],
            "version": __version__,
        }

    def shutdown(self) -> None:
        """End the engine's processes. Harmless when called again."""
        if not self._closed:
            self._watching.cancel()
            self._wait(self._runtime.stop())
            self._stop_loop()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # ---- in the engine's own loop

    async def _vectors(self, prompt: Any, input_ids: Any, dimensions: int | None, rid: Any) -> Any:
        body = pooled.body_of(EncodeBody, text=prompt, input_ids=input_ids, dimensions=dimensions, rid=rid)
        return await pooled.vectors(self._runtime.manager, body, self._config.server.weight_version)

    async def _scores(
        self, query: Any, items: Any, labels: Any, apply_softmax: bool, item_first: bool, temperature: float
    ) -> pooled.ScoreResult:
        body = pooled.body_of(
            ScoreBody,
            query=query,
            items=items,
            label_token_ids=labels,
            apply_softmax=apply_softmax,
            item_first=item_first,
            temperature=temperature,
        )
        return await pooled.scores(self._runtime.manager, body)

    async def _steps(self, requested: GenerateBody) -> AsyncGenerator[list[Answer], None]:
        """Answers so far, whenever something is new."""
        requests, several = expand(requested)
        choices = await self._runtime.manager.submit_all(requests)
        transcripts = [Transcript(index, choice) for index, choice in enumerate(choices)]
        readings = [Readings(choice) for choice in choices]
        try:
            updates = Updates(choices)
            while batch := await updates.next():
                shown = []
                for index, update in batch:
                    transcript = transcripts[index]
                    transcript.take(update)
                    error = error_of(transcript.reason)
                    if error is not None:
                        raise error
                    one = self._shown(transcript)
                    readings[index].take(update.extras)
                    one["meta_info"] |= readings[index].meta()
                    shown.append({**one, "index": index} if several else one)
                yield shown
        finally:
            for choice in choices:
                choice.abort()

    async def _whole(self, requested: GenerateBody) -> Answer | list[Answer]:
        last: dict[int, Answer] = {}
        async with aclosing(self._steps(requested)) as steps:
            async for batch in steps:
                for one in batch:
                    last[one.pop("index", -1)] = one
        return last[-1] if -1 in last else [last[index] for index in sorted(last)]

    def _shown(self, transcript: Transcript) -> Answer:
        version = self._config.server.weight_version
        ids = list(transcript.token_ids)
        return answer(transcript.choice, transcript.text, ids, transcript.completion_tokens, version)

    # ---- between the caller's threads or loops and the engine's

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise RuntimeError("the engine has been shut down")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _pull(self, steps: AsyncGenerator[list[Answer], None]) -> Iterator[Answer]:
        try:
            while (batch := self._wait(_next(steps))) is not None:
                yield from batch
        finally:
            self._wait(_close(steps))

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _pull_async(self, steps: AsyncGenerator[list[Answer], None]) -> AsyncIterator[Answer]:
        def there(work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

        try:
            while (batch := await there(_next(steps))) is not None:
                for one in batch:
                    yield one
        finally:
            await there(_close(steps))

    def _stop_loop(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next(steps: AsyncGenerator[list[Answer], None]) -> list[Answer] | None:
    return await anext(steps, None)


async def _close(steps: AsyncGenerator[list[Answer], None]) -> None:
    await steps.aclose()


def _body(
    asked: dict[str, Any], prompt: Any, sampling_params: Any, input_ids: Any, stream: bool, rid: Any
) -> GenerateBody:
    """The arguments as a /generate body; RequestError names the one of a wrong type, TypeError one that is unknown."""
    unknown = asked.keys() - _ASKED
    if unknown:
        raise TypeError(f"generate() has no argument {min(unknown)!r}")
    fields = {"text": prompt, "sampling_params": sampling_params, "input_ids": input_ids, "stream": stream, "rid": rid}
    fields |= asked
    try:
        return msgspec.convert(fields, GenerateBody)
    except msgspec.ValidationError as error:
        raise RequestError(str(error)) from None

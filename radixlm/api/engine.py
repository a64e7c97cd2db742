"""Engine: the serving engine inside a Python program, with SGLang's method names. No HTTP; the same processes."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from radixlm import __version__
from radixlm.api.runtime import Model, Runtime
from radixlm.base import log
from radixlm.config.groups import Config
from radixlm.frontend.choice import ChoiceRequest
from radixlm.frontend.tokenizer_manager import NoMetrics
from radixlm.protocol import control

T = TypeVar("T")
Prompt = str | Sequence[str] | None
Ids = Sequence[int] | Sequence[Sequence[int]] | None
Params = dict[str, Any] | Sequence[dict[str, Any]] | None


class Engine:
    """Loads a model and generates.

    Keyword arguments are the server's flags in snake case: `Engine(model_path="demo", dtype="float32")`. A context
    manager; otherwise call `shutdown`. Methods may be called from any thread.

    Raises RadixError (ConfigError, ModelError, CapacityError) when the engine cannot be started.
    """

    def __init__(self, **flags: Any) -> None:
        flags.setdefault("log_level", "error")
        config = Config.from_flat(flags)
        log.setup(config.server.log_level)
        model = Model.find(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="radixlm-engine", daemon=True)
        self._thread.start()
        self._closed = False
        self._config = config
        self._runtime = self._wait(self._launch(config, model))

    async def _launch(self, config: Config, model: Model) -> Runtime:
        runtime = Runtime(config, model, NoMetrics())
        try:
            await runtime.start()
        except BaseException:
            await runtime.stop()
            self._loop.call_soon(self._loop.stop)
            raise
        return runtime

    def generate(
        self,
        prompt: Prompt = None,
        sampling_params: Params = None,
        input_ids: Ids = None,
        stream: bool = False,
        rid: str | Sequence[str] | None = None,
    ) -> Any:
        """Continue one prompt or several.

        Exactly one of `prompt` (text) and `input_ids` is given, single or as a list; `sampling_params` is one dict for
        all or a list. Returns a dict with `text`, `output_ids` and `meta_info` as /generate does, or a list of them;
        with `stream` (single prompts only) an iterator of dicts with the text so far. Raises RequestError for a request
        that cannot be run.
        """
        if not stream:
            return self._wait(self._generate(prompt, sampling_params, input_ids, rid))
        return self._iterate(self._stream(prompt, sampling_params, input_ids, rid))

    async def async_generate(
        self,
        prompt: Prompt = None,
        sampling_params: Params = None,
        input_ids: Ids = None,
        stream: bool = False,
        rid: str | Sequence[str] | None = None,
    ) -> Any:
        """`generate` for a running event loop: awaits the result, or with `stream` returns an async iterator."""
        if not stream:
            return await asyncio.wrap_future(self._submit(self._generate(prompt, sampling_params, input_ids, rid)))
        return self._iterate_async(self._stream(prompt, sampling_params, input_ids, rid))

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
        if self._closed:
            return
        self._closed = True
        self._wait(self._runtime.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._submit(work).result()

    async def _generate(self, prompt: Prompt, params: Params, input_ids: Ids, rid: str | Sequence[str] | None) -> Any:
        requests, single = _requests(prompt, params, input_ids, rid, stream=False)
        choices = await self._runtime.manager.submit_all(requests)
        results = []
        for choice in choices:
            text, tokens = "", list[int]()
            async for update in choice.updates():
                text += update.text
                tokens += update.token_ids
            results.append(native.answer(choice, text, tokens))
        return results[0] if single else results

    async def _stream(
        self, prompt: Prompt, params: Params, input_ids: Ids, rid: str | Sequence[str] | None
    ) -> AsyncIterator[dict[str, Any]]:
        requests, single = _requests(prompt, params, input_ids, rid, stream=True)
        if not single:
            raise ValueError("stream takes a single prompt")
        choice = (await self._runtime.manager.submit_all(requests))[0]
        text, tokens = "", list[int]()
        try:
            async for update in choice.updates():
                text += update.text
                tokens += update.token_ids
                yield native.answer(choice, text, tokens)
        finally:
            choice.abort()

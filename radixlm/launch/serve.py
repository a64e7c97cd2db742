"""The life of a server: port, model, processes, HTTP, and an orderly end. Knows no route and no step."""

import asyncio
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Literal

from radixlm import __version__
from radixlm.api.runtime import Model, Program, Runtime, start_scheduler
from radixlm.base import log
from radixlm.base.errors import RadixError
from radixlm.config.groups import Config
from radixlm.engine.child import Child
from radixlm.launch.observers import Observers
from radixlm.observability.metrics import BucketOverrides, Metrics, MetricsSink, NullMetrics
from radixlm.parsers import detect
from radixlm.server.app import build_app
from radixlm.server.request_log import RequestLog, RequestLogSettings
from radixlm.server.run import HttpServer, Tls, bind, loop_factory
from radixlm.server.services import Services
from radixlm.server.sessions import Sessions

logger = log.get(__name__)
STOPS = (signal.SIGTERM, signal.SIGINT)
Ready = Callable[[str], Coroutine[None, None, bool]]  # called with the server's URL; True ends the server


def serve(config: Config, on_ready: Ready | None = None, scheduler: Program | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. RadixError when the server cannot be started.

    The port is taken first, so that a busy one is known before a model is loaded. `scheduler` stands in for the engine.
    """
    log.setup(config.server.log_level)
    tls = Tls.of(config.server)
    listener = bind(config.server.host, config.server.port)
    child = _start(scheduler)
    try:
        model = Model.find(config)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_Server(config, model, listener, tls, on_ready, child).run())
    finally:
        child.end(0.0)
        listener.close()


def _start(scheduler: Program | None) -> Child:
    """Start the scheduler process. Until there is a loop, a signal ends both, at the earliest when the child stands.

    It does so by no exception, which could come where it is lost.
    """
    waiting: list[int] = []
    for number in STOPS:
        signal.signal(number, lambda number, frame: waiting.append(number))
    child = start_scheduler(scheduler)

    def leave_at_once(number: int, frame: FrameType | None) -> None:
        child.end(0.0)
        os._exit(0)

    for number in STOPS:
        signal.signal(number, leave_at_once)
    if waiting:
        leave_at_once(waiting[0], None)
    return child


class _Server:
    def __init__(
        self,
        config: Config,
        model: Model,
        listener: socket.socket,
        tls: Tls | None,
        on_ready: Ready | None,
        scheduler: Child,
    ) -> None:
        self._config = config
        self._model = model
        self._listener = listener
        self._tls = tls
        self._on_ready = on_ready
        self._scheduler = scheduler
        self._request_log = self._make_request_log()
        self._metrics = self._make_metrics()
        self._observers = Observers(config, self._served_name(), self._metrics)
        self._stop = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self._stop.set)
        runtime = Runtime(self._config, self._model, self._metrics, self._scheduler, self._observers.on_ended)
        try:
            starting = asyncio.create_task(runtime.start())
            if not await self._first(starting):
                starting.cancel()
                return 0
            ready = starting.result()
            for line in ready.report:
                logger.info(line)
            return await self._serve(runtime)
        finally:
            await runtime.stop()
            await asyncio.to_thread(self._observers.close)

    async def _serve(self, runtime: Runtime) -> int:
        server = self._config.server
        app = build_app(self._services(runtime))
        level = server.log_level_http or server.log_level
        http = HttpServer(app, self._listener, level, server.fastapi_root_path, self._tls)
        serving = asyncio.create_task(http.serve())
        watching = asyncio.create_task(runtime.watch())
        url = f"http{'s' if self._tls else ''}://{server.host}:{server.port}"
        self._metrics.startup("tokenizer_e2e", runtime.startup_s)
        logger.info("The server is fired up and ready to roll: %s (%.1f s)", url, runtime.startup_s)
        asking = asyncio.create_task(self._on_ready(url)) if self._on_ready is not None else None
        if asking is not None:
            asking.add_done_callback(lambda task: self._stop.set() if task.exception() or task.result() else None)
        try:
            await self._first(watching, serving)
            if watching.done():
                runtime.manager.fail(watching.result())
                logger.error("the server ends: %s", watching.result())
                return 1
            if serving.done() and not self._stop.is_set():
                logger.error("the HTTP server ended by itself")
                return 1
            if not await self._drain(runtime, watching):
                return 1
            if asking is not None and asking.done() and asking.exception() is not None:
                raise RadixError(str(asking.exception()))
            return 0
        finally:
            runtime.manager.fail("The server has been stopped.")  # what is left ends with an error, not with silence
            http.stop()
            await asyncio.wait({serving}, timeout=2.0)
            http.stop(force=True)
            await asyncio.wait({serving}, timeout=1.0)
            for task in (serving, watching, *([asking] if asking is not None else [])):
                task.cancel()

    async def _drain(self, runtime: Runtime, watching: "asyncio.Task[str]") -> bool:
        """Let running requests end; False when a child died meanwhile. A second signal cuts it short."""
        if runtime.manager.live:
            logger.info("draining %d requests (again to end at once)", runtime.manager.live)
        self._stop.clear()
        draining = asyncio.create_task(runtime.manager.drain(self._config.server.drain_timeout))
        await self._first(draining, watching)
        draining.cancel()
        return not watching.done()

    async def _first(self, *tasks: "asyncio.Task[object]") -> bool:
        """Wait until one of `tasks` is done or a signal came; whether a task was done."""
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        return any(task.done() for task in tasks)

    def _make_metrics(self) -> MetricsSink:
        observe = self._config.observe
        if not observe.enable_metrics:
            return NullMetrics()
        return Metrics(
            model_name=self._served_name(),
            extra_labels=observe.extra_metric_labels or {},
            buckets=BucketOverrides(
                time_to_first_token=observe.bucket_time_to_first_token,
                inter_token_latency=observe.bucket_inter_token_latency,
                e2e_request_latency=observe.bucket_e2e_request_latency,
                prompt_tokens=observe.prompt_tokens_buckets,
                generation_tokens=observe.generation_tokens_buckets,
            ),
        )

    def _make_request_log(self) -> RequestLog:
        asked = self._config.requests
        kind: Literal["text", "json"] = "json" if asked.log_requests_format == "json" else "text"
        settings = RequestLogSettings(asked.log_requests, asked.log_requests_level, kind)
        return RequestLog(settings, asked.log_requests_target or ())

    def _served_name(self) -> str:
        return self._config.server.served_model_name or self._config.model.model_path

    def _services(self, runtime: Runtime) -> Services:
        config, server = self._config, self._config.server
        ready = runtime.manager.ready
        assert ready is not None
        reasoning, calls = self._parsers()
        return Services(
            manager=runtime.manager,
            template=self._model.template,
            metrics=self._metrics,
            model_path=config.model.model_path,
            served_model_name=self._served_name(),
            version=__version__,
            tokenizer_path=config.model.tokenizer_path,
            load_format=config.model.load_format,
            weight_version=server.weight_version,
            api_key=server.api_key,
            admin_api_key=server.admin_api_key,
            enable_metrics=config.observe.enable_metrics,
            enable_cache_report=server.enable_cache_report,
            incremental_streaming_output=server.incremental_streaming_output,
            stream_response_default_include_usage=server.stream_response_default_include_usage,
            reasoning_parser=reasoning,
            tool_call_parser=calls,
            enable_response_store=server.enable_response_store,
            strict_model_name=server.strict_model_name,
            request_timeout_s=server.request_timeout,
            access_log_exclude_prefixes=config.requests.uvicorn_access_log_exclude_prefixes,
            request_log=self._request_log,
            journal=self._observers.journal,
            enable_trace=config.observe.enable_trace,
            sessions=Sessions(server.enable_streaming_session),
            sampling_defaults="openai" if server.sampling_defaults == "openai" else "model",
            launch_command=shlex.join(sys.argv),
            launch={**config.shown(), **ready.facts, "pid": os.getpid()},
            startup_s=runtime.startup_s,
        )

    def _parsers(self) -> tuple[str | None, str | None]:
        """The names of the reasoning and the tool-call parser; what `auto` has found is told."""
        server, template = self._config.server, self._model.template
        source = template.source if template is not None else ""
        names = {
            "reasoning": (server.reasoning_parser, detect.reasoning_parser(server.reasoning_parser, source)),
            "tool-call": (server.tool_call_parser, detect.tool_call_parser(server.tool_call_parser, source)),
        }
        for kind, (asked, found) in names.items():
            if asked == detect.AUTO and found is None:
                logger.warning("--%s-parser auto: the chat template shows no format that is known; none is used", kind)
            elif asked == detect.AUTO:
                logger.info("--%s-parser auto: %s, by the chat template", kind, found)
        return names["reasoning"][1], names["tool-call"][1]

"""The life of a server: port, model, processes, HTTP, and an orderly end. Knows no route and no step."""

import asyncio
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Coroutine

from radixlm import __version__
from radixlm.api.runtime import Model, Runtime
from radixlm.base import log
from radixlm.base.errors import RadixError
from radixlm.config.groups import Config
from radixlm.observability.metrics import BucketOverrides, Metrics, MetricsSink, NullMetrics
from radixlm.server.app import build_app
from radixlm.server.run import HttpServer, bind, loop_factory
from radixlm.server.services import Services

logger = log.get(__name__)
DRAIN_S = 120.0  # how long running requests may take to end after SIGTERM
Ready = Callable[[str], Coroutine[None, None, bool]]  # called with the server's URL; True ends the server


def serve(config: Config, on_ready: Ready | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. RadixError when the server cannot be started.

    The port is taken first, so that a busy one is known before a model is loaded.
    """
    log.setup(config.server.log_level)
    listener = bind(config.server.host, config.server.port)
    try:
        model = Model.find(config)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_Server(config, model, listener, on_ready).run())
    finally:
        listener.close()


class _Server:
    def __init__(self, config: Config, model: Model, listener: socket.socket, on_ready: Ready | None) -> None:
        self._config = config
        self._model = model
        self._listener = listener
        self._on_ready = on_ready
        self._stop = asyncio.Event()
        self._signals = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        runtime = Runtime(self._config, self._model, metrics := self._metrics())
        try:
            starting = asyncio.create_task(runtime.start())
            if not await self._first(starting):
                return 0
            ready = starting.result()
            for line in ready.report:
                logger.info(line)
            metrics.ready(ready)
            return await self._serve(runtime, metrics)
        finally:
            await runtime.stop()

    async def _serve(self, runtime: Runtime, metrics: MetricsSink) -> int:
        server = self._config.server
        app = build_app(self._services(runtime, metrics))
        http = HttpServer(app, self._listener, server.log_level_http or server.log_level)
        serving = asyncio.create_task(http.serve())
        watching = asyncio.create_task(runtime.watch())
        url = f"http://{server.host}:{server.port}"
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
            http.stop()
            await asyncio.wait({serving}, timeout=2.0)
            for task in (serving, watching, *([asking] if asking is not None else [])):
                task.cancel()

    async def _drain(self, runtime: Runtime, watching: "asyncio.Task[str]") -> bool:
        """Let running requests end; False when a child died meanwhile. A second signal cuts it short."""
        if runtime.manager.live:
            logger.info("draining %d requests (again to end at once)", runtime.manager.live)
        self._stop.clear()
        draining = asyncio.create_task(runtime.manager.drain(DRAIN_S))
        await self._first(draining, watching)
        draining.cancel()
        return not watching.done()

    async def _first(self, *tasks: "asyncio.Task[object]") -> bool:
        """Wait until one of `tasks` is done or a signal came; whether a task was done."""
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        return any(task.done() for task in tasks)

    def _on_signal(self) -> None:
        self._signals += 1
        self._stop.set()

    def _metrics(self) -> MetricsSink:
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
            ),
        )

    def _served_name(self) -> str:
        return self._config.server.served_model_name or self._config.model.model_path

    def _services(self, runtime: Runtime, metrics: MetricsSink) -> Services:
        config = self._config
        ready = runtime.manager.ready
        assert ready is not None
        return Services(
            manager=runtime.manager,
            template=self._model.template,
            metrics=metrics,
            model_path=config.model.model_path,
            served_model_name=self._served_name(),
            version=__version__,
            tokenizer_path=config.model.tokenizer_path,
            load_format=config.model.load_format,
            weight_version=config.server.weight_version,
            api_key=config.server.api_key,
            enable_metrics=config.observe.enable_metrics,
            enable_cache_report=config.server.enable_cache_report,
            sampling_defaults="openai" if config.server.sampling_defaults == "openai" else "model",
            launch_command=shlex.join(sys.argv),
            launch={**config.shown(), **ready.facts, "pid": os.getpid()},
            startup_s=runtime.startup_s,
        )

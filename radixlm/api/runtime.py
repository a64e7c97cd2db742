"""Runtime: one engine with its processes, seen from the process that talks to people. Serves no HTTP.

The tokenizer manager lives here, in the caller's event loop; the scheduler and, with cores to spare, the tokenizers and
the detokenizer are children. Used by the server and by Engine alike.
"""

import asyncio
import json
import os
import time
from dataclasses import dataclass

from radixlm.api.workers import Workers
from radixlm.base import log
from radixlm.base.errors import RadixError
from radixlm.config.card import ModelCard
from radixlm.config.facts import probe_host
from radixlm.config.groups import Config
from radixlm.engine.child import Child
from radixlm.engine.spec import ChildSpec
from radixlm.frontend.detokenizer import Detokenizer
from radixlm.frontend.metrics_hooks import MetricsHooks
from radixlm.frontend.prompts import LocalPrompts
from radixlm.frontend.template import ChatTemplate, load_chat_template
from radixlm.frontend.tokenizer_manager import TokenizerManager, TokenizerManagerConfig
from radixlm.frontend.tokenizer_pool import TokenizerPool
from radixlm.loader.card import load_card
from radixlm.loader.source import ModelSource, resolve
from radixlm.loader.tokenizer import Tokenizer, load_tokenizer
from radixlm.observability.record import RecordSink
from radixlm.protocol.messages import SchedulerReady, ShutdownReq
from radixlm.protocol.wire import Addresses, ServerLink

logger = log.get(__name__)
WATCH_S = 0.1  # how often the children are looked at
END_S = 5.0  # how long a child may take to leave by itself
# OpenMP threads wait for each other in the model's loops. By default they spin for milliseconds, so that on two cores
# one busy neighbour made a token 25 times slower (measured). Sleeping after a shorter spin it is 5 times; alone, none.
# From huge pages, which the C library asks for by this name, weights are read a fifth faster.
MODEL_ENV = {
    "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "10000"),
    "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
}


@dataclass(frozen=True)
class Program:
    """What runs as the scheduler process: a module and its arguments."""

    module: str = "radixlm.engine.process"
    arguments: tuple[str, ...] = ()


def start_scheduler(program: Program | None = None) -> Child:
    """Start the scheduler process, so that it imports while the model is looked up; a Runtime tells it the rest.

    `program` stands in for the engine where only what is before it is of interest.
    """
    program = program or Program()
    return Child("scheduler", program.module, None, MODEL_ENV, program.arguments)


@dataclass(frozen=True)
class Model:
    """What is known of a model before any weight is read."""

    source: ModelSource
    card: ModelCard
    tokenizer: Tokenizer
    template: ChatTemplate | None

    @staticmethod
    def find(config: Config) -> "Model":
        """Resolve the model named by `config` and read its card, tokenizer and template. RadixError if it cannot be."""
        asked = config.model
        source = resolve(asked.model_path, asked.revision, asked.download_dir)
        card = load_card(source, json.loads(asked.json_model_override_args), asked.is_embedding)
        tokenizer = load_tokenizer(source, asked.tokenizer_path)
        defaults = json.loads(config.server.default_chat_template_kwargs)
        return Model(source, card, tokenizer, load_chat_template(tokenizer, config.server.chat_template, defaults))


class Runtime:
    """Starts the processes of one engine, watches them and ends them."""

    def __init__(
        self,
        config: Config,
        model: Model,
        metrics: MetricsHooks,
        scheduler: Child,
        on_ended: RecordSink | None = None,
    ) -> None:
        """Start the children; `start` waits for them. Call in a thread with a running event loop.

        `scheduler`: from `start_scheduler`. `on_ended` is given the record of every request that ends.
        """
        self.config = config
        self.model = model
        self._began_s = scheduler.began_s
        workers = Workers.of(config.server, probe_host().cores)
        generates = model.card.pooling is None
        apart = workers.detokenizer_apart and generates
        self._addresses = Addresses.create()
        self._link = ServerLink(self._addresses)
        spec = ChildSpec.make(config, model.source, model.card, self._addresses, apart).encode()
        scheduler.tell(spec)
        self._children = [scheduler]
        if apart:
            self._children.append(Child("detokenizer", "radixlm.frontend.detokenizer_process", spec))
        self._pool: TokenizerPool | None = None
        if workers.tokenizers:
            self._pool = TokenizerPool(self._addresses, workers.tokenizers, LocalPrompts(model.tokenizer))
        for worker in range(workers.tokenizers):
            name = f"tokenizer-{worker}"
            self._children.append(Child(name, "radixlm.frontend.tokenizer_process", spec, arguments=(str(worker),)))
        settings = TokenizerManagerConfig(
            context_len=config.model.context_length or model.card.context_len,
            allow_auto_truncate=config.server.allow_auto_truncate,
            max_queued_requests=config.server.max_queued_requests,
            stream_interval=config.server.stream_interval,
            enable_return_hidden_states=config.server.enable_return_hidden_states,
            random_seed=config.device.random_seed,
        )
        inside = Detokenizer(model.tokenizer) if generates and not apart else None
        self.manager = TokenizerManager(
            settings, model.card, model.tokenizer, self._link, inside, metrics, on_ended=on_ended, prompts=self._pool
        )
        self._receiving: list[asyncio.Task[None]] = []

    async def start(self) -> SchedulerReady:
        """Wait until the scheduler and all workers can serve. RadixError with the cause when a child ends first."""
        self._receiving = [asyncio.create_task(self.manager.run())]
        if self._pool is not None:
            self._receiving.append(asyncio.create_task(self._pool.run()))
        tokenizing = asyncio.create_task(self._tokenizers_ready())
        try:
            while self.manager.ready is None or not tokenizing.done():
                cause = self.trouble()
                if cause is not None:
                    raise RadixError(cause)
                await asyncio.sleep(WATCH_S / 2)
        finally:
            tokenizing.cancel()
        return self.manager.ready

    async def _tokenizers_ready(self) -> None:
        if self._pool is not None:
            await self._pool.ready()

    @property
    def startup_s(self) -> float:
        """Seconds since the children were started."""
        return time.monotonic() - self._began_s

    def trouble(self) -> str | None:
        """Why this runtime can no longer serve, or None while it can."""
        if self.manager.fatal is not None:
            return self.manager.fatal
        for task in self._receiving:
            if task.done():
                return f"the receiving task ended: {task.exception()!r}"
        heard_s = self.manager.last_heartbeat
        silent_s = 0.0 if heard_s is None else time.monotonic() - heard_s
        if self.manager.ready is not None and silent_s > self.config.device.watchdog_timeout:
            return f"the scheduler has given no sign of life for {silent_s:.0f} s (--watchdog-timeout)"
        for child in self._children:
            if child.exit_status() is not None:
                return child.epitaph()
        return None

    async def watch(self) -> str:
        """Return the cause as soon as something is wrong; a child's own last words come before its exit status."""
        while True:
            cause = self.trouble()
            if cause is not None:
                await asyncio.sleep(WATCH_S)
                return self.manager.fatal or cause
            await asyncio.sleep(WATCH_S)

    async def stop(self) -> None:
        """End the children and free the sockets; what still runs is failed (drain first: TokenizerManager.drain).

        A scheduler that is still loading is not asked: it leaves, at once, with the pipe that ties it to us.
        """
        serving = self.manager.ready is not None and self._link.send(ShutdownReq())
        self.manager.fail("the engine has been stopped")
        await asyncio.to_thread(self._end_children, END_S if serving else 0.0)
        for task in self._receiving:
            task.cancel()
        await asyncio.gather(*self._receiving, return_exceptions=True)
        self._link.close()
        if self._pool is not None:
            self._pool.close()
        self._addresses.remove()

    def _end_children(self, patience_s: float) -> None:
        self._children[0].wait(patience_s)
        for child in self._children:
            child.end(END_S)

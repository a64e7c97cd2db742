"""A whole engine in this process: scheduler, runner and loop around a loaded model, without sockets."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from radixlm.config.card import ModelCard
from radixlm.config.facts import HardwareFacts
from radixlm.config.groups import Config
from radixlm.config.resolve import resolve
from radixlm.engine.build import Engine, assemble, probe
from radixlm.engine.grammars import GrammarRoom
from radixlm.engine.loop import Loop
from radixlm.loader.dummy import fill_dummy
from radixlm.loader.weights import LoadedModel
from radixlm.protocol.extras import Extras
from radixlm.protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    CacheNamespace,
    Finished,
    FromScheduler,
    Message,
    TextOptions,
    TokenizedGenerateReqInput,
)
from radixlm.protocol.sampling import SamplingParams
from tests.helpers.tiny import build

HOST = HardwareFacts(cores=2, memory_bytes=16 * 2**30, available_bytes=12 * 2**30)


def tiny_engine(card: ModelCard, **flags: Any) -> Engine:
    """An engine on the CPU, with made-up weights, that nothing drives yet."""
    with torch.no_grad():
        model = build(card)
        fill_dummy(model.parameters(), 0)
        model.pack()
    config = Config.from_flat({"model_path": "t", "device": "cpu", "dtype": "float32", **flags})
    loaded = LoadedModel(model, 1000, 0.0)
    return assemble(resolve(config, HOST, card), card, loaded, HOST.available_bytes, None)


@dataclass
class Output:
    """What one request got."""

    tokens: list[int] = field(default_factory=list)
    finished: Finished | None = None
    extras: list[Extras] = field(default_factory=list)


class LocalEngine:
    """An engine on the CPU, or with device="cuda" on the GPU; `flags` are the server's, `run_ahead` is the depth."""

    def __init__(
        self,
        loaded: LoadedModel,
        card: ModelCard,
        run_ahead: int = 0,
        grammars: GrammarRoom | None = None,
        **flags: Any,
    ) -> None:
        config = Config.from_flat({"model_path": "test", "device": "cpu", "dtype": "float32", **flags})
        facts = HOST if config.device.device == "cpu" else probe(config.device.device)
        available_bytes = facts.available_bytes if facts.gpu is None else facts.gpu.available_bytes
        engine = assemble(resolve(config, facts, card), card, loaded, available_bytes, None)
        self.scheduler = engine.scheduler
        self.runner = engine.runner
        self.ready = engine.ready
        self.outputs: dict[int, Output] = {}
        self._inbox: list[Message] = []
        self._keys = 0
        self.grammars = grammars or engine.grammars
        self._loop = Loop(engine.scheduler, engine.runner, self, self._take, run_ahead, grammars=self.grammars)

    def drain(self, timeout_s: float = 0.0) -> Sequence[Message]:
        """What was submitted. It takes the time it is given only where a grammar is being compiled."""
        if not self._inbox and self.grammars.waiting:
            time.sleep(timeout_s)
        messages, self._inbox = self._inbox, []
        return messages

    def submit(
        self, prompt: Sequence[int], params: SamplingParams, stream: bool = False, salt: str = "", **asked: Any
    ) -> int:
        """`asked` are further fields of TokenizedGenerateReqInput."""
        self._keys += 1
        self.outputs[self._keys] = Output()
        self._inbox.append(
            TokenizedGenerateReqInput(
                key=self._keys,
                input_ids=np.asarray(prompt, np.int32),
                sampling=params,
                text=TextOptions(),
                stream=stream,
                arrival_time=0.0,
                namespace=CacheNamespace(cache_salt=salt),
                **asked,
            )
        )
        return self._keys

    def abort(self, key: int) -> None:
        self._inbox.append(AbortReq([key]))

    def turn(self) -> None:
        """One round of the loop, after which the books must balance."""
        self._loop.turn()
        assert self.scheduler.check() == []

    def finish(self) -> None:
        """Turn until every request has ended."""
        for _ in range(100_000):
            if all(output.finished is not None for output in self.outputs.values()):
                return
            self.turn()
        raise AssertionError("requests did not end")

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams], at_once: int = 10_000
    ) -> list[Output]:
        """Continue `prompts`, `at_once` of them together; in order."""
        every = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        results: list[Output] = []
        for first in range(0, len(prompts), at_once):
            part = range(first, min(first + at_once, len(prompts)))
            keys = [self.submit(prompts[i], every[i]) for i in part]
            self.finish()
            results += [self.outputs[key] for key in keys]
        return results

    def _take(self, message: FromScheduler) -> None:
        if not isinstance(message, BatchTokenIDOutput):
            return
        at = 0
        tokens = message.tokens.tolist()
        for key, count in zip(message.keys.tolist(), message.counts.tolist(), strict=True):
            self.outputs[key].tokens += tokens[at : at + count]
            at += count
        for key, extras in message.extras.items():
            self.outputs[key].extras.append(extras)
        for finished in message.finished:
            assert self.outputs[finished.key].finished is None
            self.outputs[finished.key].finished = finished


def greedy(max_new_tokens: int, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": max_new_tokens, "temperature": 0.0, "ignore_eos": True, **changes})

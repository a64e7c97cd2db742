"""A scheduler process without a model: at each tick every live request gets a token. For measuring what stands before
the engine. Knows the messages; no queue, no cache, no device.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence

import msgspec
import numpy as np
import setproctitle

from radixlm.base import log
from radixlm.engine.child import read_spec
from radixlm.engine.spec import ChildSpec
from radixlm.loader.tokenizer import load_tokenizer
from radixlm.protocol import control
from radixlm.protocol.arrays import I32, I64
from radixlm.protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    ControlReply,
    ControlReq,
    Finished,
    FinishReason,
    FromScheduler,
    Message,
    SchedulerReady,
    SchedulerStats,
    ShutdownReq,
    Started,
    TokenizedGenerateReqInput,
)
from radixlm.protocol.wire import Receiver, Sender

PULSE_S = 1.0
CAPACITY_TOKENS = 1 << 30
MOST_RUNNING = 1 << 20


class Pacer:
    """Live requests, and what each tick says of them. Ids come from `ids` at random; all requests end by length."""

    def __init__(self, ids: I32, seed: int = 0) -> None:
        self._ids = ids
        self._draw = np.random.default_rng(seed)
        self._live: dict[int, TokenizedGenerateReqInput] = {}
        self._new: list[TokenizedGenerateReqInput] = []
        self._ended: list[Finished] = []
        self._keys: I64 = np.empty(0, np.int64)
        self._left: I32 = np.empty(0, np.int32)
        self._streams: I32 = np.empty(0, np.int32)
        self.tokens = 0

    @property
    def live(self) -> int:
        return len(self._live)

    def take(self, message: TokenizedGenerateReqInput | AbortReq) -> None:
        if isinstance(message, AbortReq):
            for key in message.keys:
                self._abort(key, message.message)
        else:
            self._live[message.key] = message
            self._new.append(message)

    def _abort(self, key: int, why: str) -> None:
        request = self._live.pop(key, None)
        if request is None:
            return
        made = 0
        at = np.flatnonzero(self._keys == key)
        if len(at):
            made = request.sampling.max_new_tokens - int(self._left[at[0]])
            self._keep(self._keys != key)
        self._new = [one for one in self._new if one.key != key]
        reason = FinishReason("abort", message=why)
        self._ended.append(Finished(key, reason, len(request.input_ids), made, 0, 0))

    def tick(self) -> BatchTokenIDOutput | None:
        """One token for everybody: at once for streams, all together at the end for the others."""
        started = [Started(one.key, len(one.input_ids), 0, 0.0, one.text) for one in self._new]
        if self._new:
            self._keys = np.concatenate((self._keys, np.array([one.key for one in self._new], np.int64)))
            left = np.array([one.sampling.max_new_tokens for one in self._new], np.int32)
            self._left = np.concatenate((self._left, left))
            self._streams = np.concatenate((self._streams, np.array([one.stream for one in self._new], np.int32)))
            self._new = []
        ended, self._ended = self._ended, []
        if not len(self._keys) and not ended:
            return None
        self._left -= 1
        over = self._left <= 0
        shown = over | (self._streams > 0)
        counts = np.ones(len(self._keys), np.int32)
        for place in np.flatnonzero(over).tolist():
            request = self._live.pop(int(self._keys[place]))
            length = request.sampling.max_new_tokens
            counts[place] = min(length, 1) if request.stream else length
            reason = FinishReason("length", length=length)
            ended.append(Finished(request.key, reason, len(request.input_ids), length, 0, 0))
        aborted = len(ended) - int(over.sum())
        keys = np.concatenate((self._keys[shown], np.array([one.key for one in ended[:aborted]], np.int64)))
        counts = np.concatenate((counts[shown], np.zeros(aborted, np.int32)))
        tokens = self._ids[self._draw.integers(0, len(self._ids), int(counts.sum()))]
        self.tokens += len(tokens)
        self._keep(~over)
        return BatchTokenIDOutput(keys, counts, tokens, started, ended)

    def _keep(self, rows: np.ndarray) -> None:
        self._keys, self._left, self._streams = self._keys[rows], self._left[rows], self._streams[rows]


def spoken_ids(pieces: Sequence[bytes]) -> I32:
    """The ids whose bytes are printable ASCII, so that every token is text of its own; all ids where none is."""
    plain = [id_ for id_, piece in enumerate(pieces) if piece and piece.isascii() and piece.decode().isprintable()]
    return np.array(plain or range(len(pieces)), np.int32)


def _answer(request: ControlReq, stats: SchedulerStats) -> ControlReply:
    if request.verb == "flush_cache":
        return ControlReply(request.call, msgspec.msgpack.encode(control.FlushCacheReply(True, "Cache flushed.")))
    if request.verb == "internal_state":
        state = {**msgspec.to_builtins(stats), "pid": os.getpid()}
        return ControlReply(request.call, msgspec.msgpack.encode(control.InternalStateReply(state)))
    return ControlReply(request.call, error=f"{request.verb}: there is no engine behind this server", status=501)


class _Ticking:
    """The loop around a Pacer: a tick is due every `step_s`; a late one does not make the later ones come faster."""

    def __init__(self, pacer: Pacer, step_s: float, inbox: Receiver, to_front: Sender, to_detokenizer: Sender) -> None:
        self._pacer, self._step_s = pacer, step_s
        self._inbox, self._to_front, self._to_detokenizer = inbox, to_front, to_detokenizer
        self._steps = 0
        self._running = True

    def run(self) -> None:
        due_s = time.monotonic()
        pulse_s = 0.0
        while self._running:
            now_s = time.monotonic()
            idle = not self._pacer.live
            for message in self._inbox.drain(PULSE_S if idle else max(due_s - now_s, 0.0)):
                self._take(message)
            now_s = time.monotonic()
            if now_s >= due_s:
                due_s = max(due_s + self._step_s, now_s)
                self._steps += 1
                output = self._pacer.tick()
                if output is not None:
                    self._to_detokenizer.send(output)
            if now_s - pulse_s >= PULSE_S:
                pulse_s = now_s
                self._to_front.send(self._stats())

    def _take(self, message: Message) -> None:
        match message:
            case TokenizedGenerateReqInput() | AbortReq():
                self._pacer.take(message)
            case ControlReq():
                self._to_front.send(_answer(message, self._stats()))
            case ShutdownReq():
                self._running = False

    def _stats(self) -> SchedulerStats:
        running = self._pacer.live
        return SchedulerStats(
            time=time.time(), step=self._steps, num_running_reqs=running, decode_tokens_total=self._pacer.tokens
        )


def main(argv: Sequence[str] | None = None) -> int:
    """The child process: told by one line of JSON as the scheduler is, it leaves when its parent does."""
    parser = argparse.ArgumentParser(prog="python -m radixlm.engine.paced", description=__doc__)
    parser.add_argument("--step-ms", type=float, default=20.0, help="milliseconds between the tokens of a request")
    options = parser.parse_args(argv)
    spec = ChildSpec.decode(read_spec())
    settings = spec.settings
    log.setup(settings.server.log_level)
    setproctitle.setproctitle("radixlm::scheduler")
    to_front = Sender(spec.addresses.tokenizer)
    to_detokenizer = Sender(spec.addresses.detokenizer) if spec.detokenizer_apart else to_front
    tokenizer = load_tokenizer(spec.source, settings.model.tokenizer_path)
    pacer = Pacer(spoken_ids(tokenizer.token_bytes()))
    ready: FromScheduler = SchedulerReady(CAPACITY_TOKENS, CAPACITY_TOKENS, MOST_RUNNING, 1, ["no engine: paced"], {})
    to_front.send(ready)
    _Ticking(pacer, options.step_ms / 1000, Receiver(spec.addresses.scheduler), to_front, to_detokenizer).run()
    to_front.close(linger_ms=200)
    return 0


if __name__ == "__main__":
    sys.exit(main())
